#include "kv_transfer/transports/local/piece_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace baton::kv_transfer {
namespace {

// Bytes at the ends of a streamed range that fill no cache line.
void CopyToBoth(const std::byte* from, std::byte* cached, std::byte* streamed,
                size_t n) {
  std::memcpy(cached, from, n);
  std::memcpy(streamed, cached, n);
}

#ifdef __x86_64__

constexpr size_t kLine = 64;

// Whole lines; `streamed` begins at one.
using LineCopy = void (*)(const std::byte* from, std::byte* cached,
                          std::byte* streamed, size_t lines);

void CopyLinesSse2(const std::byte* from, std::byte* cached,
                   std::byte* streamed, size_t lines) {
  for (; lines > 0; --lines) {
    __m128i part[4];
    for (int i = 0; i < 4; ++i) {
      part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    }
    for (int i = 0; i < 4; ++i) {
      _mm_storeu_si128(reinterpret_cast<__m128i*>(cached) + i, part[i]);
    }
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(streamed) + i, part[i]);
    }
    from += kLine;
    cached += kLine;
    streamed += kLine;
  }
}

__attribute__((target("avx512f"))) void CopyLinesAvx512(const std::byte* from,
                                                        std::byte* cached,
                                                        std::byte* streamed,
                                                        size_t lines) {
  for (; lines > 0; --lines) {
    const __m512i line = _mm512_loadu_si512(from);
    _mm512_storeu_si512(cached, line);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(streamed), line);
    from += kLine;
    cached += kLine;
    streamed += kLine;
  }
}

LineCopy BestLineCopy() {
  return __builtin_cpu_supports("avx512f") ? CopyLinesAvx512 : CopyLinesSse2;
}

#endif

}  // namespace

void CopyCached(const std::byte* from, std::byte* to, size_t n) {
  std::memcpy(to, from, n);
}

#ifdef __x86_64__

void CopyAndStream(const std::byte* from, std::byte* cached,
                   std::byte* streamed, size_t n) {
  static const LineCopy copy_lines = BestLineCopy();
  const size_t past_line = reinterpret_cast<uintptr_t>(streamed) % kLine;
  const size_t head = std::min(n, (kLine - past_line) % kLine);
  const size_t lines = (n - head) / kLine;
  const size_t tail = head + lines * kLine;
  CopyToBoth(from, cached, streamed, head);
  copy_lines(from + head, cached + head, streamed + head, lines);
  CopyToBoth(from + tail, cached + tail, streamed + tail, n - tail);
}

void FinishStreaming() { _mm_sfence(); }

#else

void CopyAndStream(const std::byte* from, std::byte* cached,
                   std::byte* streamed, size_t n) {
  CopyToBoth(from, cached, streamed, n);
}

void FinishStreaming() {}

#endif

}  // namespace baton::kv_transfer
