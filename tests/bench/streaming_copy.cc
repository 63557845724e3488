#include "tests/bench/streaming_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace baton::kv_transfer {

#ifdef __x86_64__

namespace {

constexpr size_t kLine = 64;

// Whole lines; `to` begins at one.
using LineCopy = void (*)(const std::byte* from, std::byte* to, size_t lines);

void CopyLinesSse2(const std::byte* from, std::byte* to, size_t lines) {
  for (; lines > 0; --lines) {
    __m128i part[4];
    for (int i = 0; i < 4; ++i) {
      part[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from) + i);
    }
    for (int i = 0; i < 4; ++i) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to) + i, part[i]);
    }
    from += kLine;
    to += kLine;
  }
}

__attribute__((target("avx512f"))) void CopyLinesAvx512(const std::byte* from,
                                                        std::byte* to,
                                                        size_t lines) {
  for (; lines > 0; --lines) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                        _mm512_loadu_si512(from));
    from += kLine;
    to += kLine;
  }
}

LineCopy BestLineCopy() {
  return __builtin_cpu_supports("avx512f") ? CopyLinesAvx512 : CopyLinesSse2;
}

}  // namespace

void StreamingCopy(const std::byte* from, std::byte* to, size_t n) {
  static const LineCopy copy_lines = BestLineCopy();
  const size_t past_line = reinterpret_cast<uintptr_t>(to) % kLine;
  const size_t head = std::min(n, (kLine - past_line) % kLine);
  const size_t lines = (n - head) / kLine;
  const size_t tail = head + lines * kLine;
  std::memcpy(to, from, head);
  copy_lines(from + head, to + head, lines);
  std::memcpy(to + tail, from + tail, n - tail);
  _mm_sfence();
}

#else

void StreamingCopy(const std::byte* from, std::byte* to, size_t n) {
  std::memcpy(to, from, n);
}

#endif

}  // namespace baton::kv_transfer
