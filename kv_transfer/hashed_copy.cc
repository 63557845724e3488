// XXH3-64 of long inputs, as xxHash's specification (doc/xxhash_spec.md of
// github.com/Cyan4973/xxHash) has it: eight lanes of 64 bits take a stripe of
// 64 bytes each step, with a key that moves on by 8 bytes a stripe; they are
// scrambled after every block of 16 stripes.
#include "kv_transfer/hashed_copy.h"

#include <cstring>
#include <vector>

#ifdef __x86_64__
#include <x86intrin.h>
#endif

namespace baton::kv_transfer {
namespace {

constexpr size_t kHashStripe = 64;
// Up to here, XXH3 hashes in other ways.
constexpr size_t kLongestOther = 240;

}  // namespace

bool CanHashCopy(const std::byte* to, size_t n) {
  return n > kLongestOther && n % kHashStripe == 0 &&
         reinterpret_cast<uintptr_t>(to) % kHashStripe == 0;
}

#ifdef __x86_64__

namespace {

constexpr size_t kStripesPerBlock = 16;
constexpr size_t kHashBlock = kStripesPerBlock * kHashStripe;
// How far ahead memory is asked for, to be read and to be written. It may lie
// behind the last byte: asking never faults. Measured:
// docs/adr/0015-memory-by-descriptor.md.
constexpr size_t kPrefetchAhead = 2048;

constexpr uint64_t kPrime32_1 = 0x9E3779B1, kPrime32_2 = 0x85EBCA77,
                   kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87,
                   kPrime64_2 = 0xC2B2AE3D27D4EB4F,
                   kPrime64_3 = 0x165667B19E3779F9,
                   kPrime64_4 = 0x85EBCA77C2B2AE63,
                   kPrime64_5 = 0x27D4EB2F165667C5,
                   kPrimeMx1 = 0x165667919E3779F9;

constexpr size_t kSecretBytes = 192;
constexpr uint8_t kHashSecret[kSecretBytes] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c,
    0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
    0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6,
    0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97,
    0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
    0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83,
    0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26,
    0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
    0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};
// Where in it the keys begin of the last stripe, of scrambling, and of merging.
constexpr size_t kLastKey = kSecretBytes - kHashStripe - 7;
constexpr size_t kScrambleKey = kSecretBytes - kHashStripe;
constexpr size_t kMergeKey = 11;

uint64_t LoadKeyWord(const uint8_t* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The secret of a seed, and the lanes.
struct LaneState {
  explicit LaneState(uint64_t seed) {
    for (size_t at = 0; at < kSecretBytes; at += 16) {
      const uint64_t words[] = {LoadKeyWord(kHashSecret + at) + seed,
                                LoadKeyWord(kHashSecret + at + 8) - seed};
      std::memcpy(secret + at, words, sizeof(words));
    }
  }

  // Of `n` bytes in all.
  uint64_t Merge(size_t n) const {
    uint64_t sum = n * kPrime64_1;
    for (int i = 0; i < 8; i += 2) {
      const uint8_t* const key = secret + kMergeKey + 8 * i;
      const auto product =
          static_cast<unsigned __int128>(lanes[i] ^ LoadKeyWord(key)) *
          (lanes[i + 1] ^ LoadKeyWord(key + 8));
      sum +=
          static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
    }
    sum ^= sum >> 37;
    sum *= kPrimeMx1;
    return sum ^ (sum >> 32);
  }

  alignas(64) uint8_t secret[kSecretBytes];
  alignas(64) uint64_t lanes[8] = {kPrime32_3, kPrime64_1, kPrime64_2,
                                   kPrime64_3, kPrime64_4, kPrime32_2,
                                   kPrime64_5, kPrime32_1};
};

// CPUs without prefetchw that run in 64 bits take it for nothing.
#define BATON_AVX512 __attribute__((target("avx512f,prfchw")))
#define BATON_AVX2 __attribute__((target("avx2,prfchw")))
#define BATON_INLINE __attribute__((always_inline)) inline

// Swaps the 32-bit halves, of each 64 bits or of each 128.
constexpr int kHighToLow = _MM_SHUFFLE(0, 3, 0, 1);
constexpr int kSwapPairs = _MM_SHUFFLE(1, 0, 3, 2);

// Copies a stripe and adds it to the lanes.
template <Stores kStores>
BATON_AVX512 BATON_INLINE __m512i Step512(__m512i lanes, const std::byte* from,
                                          std::byte* to, const uint8_t* key) {
  const __m512i data = _mm512_loadu_si512(from);
  _mm_prefetch(from + kPrefetchAhead, _MM_HINT_T0);
  if constexpr (kStores == Stores::kStreaming) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to), data);
  } else {
    _m_prefetchw(to + kPrefetchAhead);
    _mm512_store_si512(to, data);
  }
  const __m512i keyed = _mm512_xor_si512(data, _mm512_loadu_si512(key));
  const __m512i high =
      _mm512_shuffle_epi32(keyed, static_cast<_MM_PERM_ENUM>(kHighToLow));
  const __m512i swapped =
      _mm512_shuffle_epi32(data, static_cast<_MM_PERM_ENUM>(kSwapPairs));
  return _mm512_add_epi64(
      lanes, _mm512_add_epi64(_mm512_mul_epu32(keyed, high), swapped));
}

BATON_AVX512 BATON_INLINE __m512i Scramble512(__m512i lanes,
                                              const uint8_t* key) {
  const __m512i prime = _mm512_set1_epi32(static_cast<int>(kPrime32_1));
  const __m512i mixed =
      _mm512_xor_si512(_mm512_xor_si512(lanes, _mm512_srli_epi64(lanes, 47)),
                       _mm512_loadu_si512(key));
  const __m512i high = _mm512_srli_epi64(mixed, 32);
  return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime),
                          _mm512_slli_epi64(_mm512_mul_epu32(high, prime), 32));
}

template <Stores kStores>
BATON_AVX512 void Run512(const std::byte* from, std::byte* to, size_t n,
                         LaneState* state) {
  const uint8_t* const secret = state->secret;
  __m512i lanes = _mm512_load_si512(state->lanes);
  for (; n > kHashBlock; n -= kHashBlock) {
#pragma GCC unroll 16
    for (size_t i = 0; i < kStripesPerBlock; ++i) {
      lanes = Step512<kStores>(lanes, from + i * kHashStripe,
                               to + i * kHashStripe, secret + 8 * i);
    }
    lanes = Scramble512(lanes, secret + kScrambleKey);
    from += kHashBlock;
    to += kHashBlock;
  }
  const uint8_t* key = secret;
  for (; n > kHashStripe; n -= kHashStripe) {
    lanes = Step512<kStores>(lanes, from, to, key);
    key += 8;
    from += kHashStripe;
    to += kHashStripe;
  }
  lanes = Step512<kStores>(lanes, from, to, secret + kLastKey);
  _mm512_store_si512(state->lanes, lanes);
}

// Half a stripe.
template <Stores kStores>
BATON_AVX2 BATON_INLINE __m256i Step256(__m256i lanes, const std::byte* from,
                                        std::byte* to, const uint8_t* key) {
  const __m256i data =
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  if constexpr (kStores == Stores::kStreaming) {
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to), data);
  } else {
    _mm256_store_si256(reinterpret_cast<__m256i*>(to), data);
  }
  const __m256i keyed = _mm256_xor_si256(
      data, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key)));
  const __m256i high = _mm256_shuffle_epi32(keyed, kHighToLow);
  const __m256i swapped = _mm256_shuffle_epi32(data, kSwapPairs);
  return _mm256_add_epi64(
      lanes, _mm256_add_epi64(_mm256_mul_epu32(keyed, high), swapped));
}

BATON_AVX2 BATON_INLINE __m256i Scramble256(__m256i lanes, const uint8_t* key) {
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(kPrime32_1));
  const __m256i mixed = _mm256_xor_si256(
      _mm256_xor_si256(lanes, _mm256_srli_epi64(lanes, 47)),
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(key)));
  const __m256i high = _mm256_srli_epi64(mixed, 32);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime),
                          _mm256_slli_epi64(_mm256_mul_epu32(high, prime), 32));
}

template <Stores kStores>
BATON_AVX2 void Run256(const std::byte* from, std::byte* to, size_t n,
                       LaneState* state) {
  constexpr size_t kHalf = kHashStripe / 2;
  const uint8_t* const secret = state->secret;
  __m256i* const stored = reinterpret_cast<__m256i*>(state->lanes);
  __m256i low = _mm256_load_si256(stored);
  __m256i high = _mm256_load_si256(stored + 1);
  for (size_t stripe = 0; n > 0; n -= kHashStripe) {
    const uint8_t* const key =
        secret + (n == kHashStripe ? kLastKey : 8 * stripe);
    _mm_prefetch(from + kPrefetchAhead, _MM_HINT_T0);
    if constexpr (kStores == Stores::kCached) _m_prefetchw(to + kPrefetchAhead);
    low = Step256<kStores>(low, from, to, key);
    high = Step256<kStores>(high, from + kHalf, to + kHalf, key + kHalf);
    from += kHashStripe;
    to += kHashStripe;
    if (++stripe == kStripesPerBlock && n > kHashStripe) {
      low = Scramble256(low, secret + kScrambleKey);
      high = Scramble256(high, secret + kScrambleKey + kHalf);
      stripe = 0;
    }
  }
  _mm256_store_si256(stored, low);
  _mm256_store_si256(stored + 1, high);
}

using RunFunction = void (*)(const std::byte* from, std::byte* to, size_t n,
                             LaneState* state);

template <RunFunction kCachedRun, RunFunction kStreamingRun>
uint64_t HashedCopyBy(const std::byte* from, std::byte* to, size_t n,
                      uint64_t seed, Stores stores) {
  LaneState state(seed);
  switch (stores) {
    case Stores::kCached:
      kCachedRun(from, to, n, &state);
      break;
    case Stores::kStreaming:
      kStreamingRun(from, to, n, &state);
      break;
  }
  return state.Merge(n);
}

#undef BATON_AVX512
#undef BATON_AVX2
#undef BATON_INLINE

}  // namespace

absl::Span<const HashedCopy> HashedCopies() {
  static const std::vector<HashedCopy>* const copies = [] {
    auto* const all = new std::vector<HashedCopy>;
    if (__builtin_cpu_supports("avx512f")) {
      all->push_back(
          &HashedCopyBy<&Run512<Stores::kCached>, &Run512<Stores::kStreaming>>);
    }
    if (__builtin_cpu_supports("avx2")) {
      all->push_back(
          &HashedCopyBy<&Run256<Stores::kCached>, &Run256<Stores::kStreaming>>);
    }
    return all;
  }();
  return *copies;
}

void FinishStreaming() { _mm_sfence(); }

void ThrowOutOfCaches(absl::Span<const std::byte> bytes) {
  constexpr size_t kCacheLineBytes = 64;
  for (size_t at = 0; at < bytes.size(); at += kCacheLineBytes) {
    _mm_clflush(bytes.data() + at);
  }
  _mm_mfence();
}

#else

absl::Span<const HashedCopy> HashedCopies() { return {}; }

void FinishStreaming() {}

void ThrowOutOfCaches(absl::Span<const std::byte>) {}

#endif

}  // namespace baton::kv_transfer
