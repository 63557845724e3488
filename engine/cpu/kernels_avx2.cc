// The kernels for AVX2 and FMA: eight floats at a time.
#include <immintrin.h>

#include "engine/cpu/kernel_sets.h"

namespace baton::engine {
namespace {

constexpr int32_t kLanes = 8;
typedef float Floats __attribute__((vector_size(32)));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef uint32_t Words __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(8)));

// Rows of a matrix product whose sums stay in registers together.
constexpr int32_t kTileRows = 4;

inline Floats Set(float x) { return _mm256_set1_ps(x); }
inline Floats Fma(Floats a, Floats b, Floats c) {
  return _mm256_fmadd_ps(a, b, c);
}
inline float SumLanes(Floats v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float MaxLanes(Floats v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

// Four signed bytes as the two vectors of 16-bit pairs that multiply the even
// and the odd bytes of a lane.
struct Quad {
  __m256i even;
  __m256i odd;
};
inline Quad SetQuad(const int8_t* p) {
  int32_t word;
  __builtin_memcpy(&word, p, sizeof(word));
  const __m256i bytes = _mm256_set1_epi32(word);
  return {_mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8),
          _mm256_srai_epi16(bytes, 8)};
}
// The four unsigned bytes of each lane.
struct WeightQuads {
  __m256i even;
  __m256i odd;
};
inline WeightQuads SplitQuads(Words bytes) {
  const __m256i v = (__m256i)bytes;
  return {_mm256_and_si256(v, _mm256_set1_epi16(0xff)),
          _mm256_srli_epi16(v, 8)};
}
inline Ints TimesHalf(Ints a, int32_t b) {
  return (Ints)_mm256_madd_epi16((__m256i)a, _mm256_set1_epi32(b));
}
inline Ints DotQuads(Ints sum, const WeightQuads& w, const Quad& a) {
  return sum + (Ints)_mm256_madd_epi16(w.even, a.even) +
         (Ints)_mm256_madd_epi16(w.odd, a.odd);
}

}  // namespace
}  // namespace baton::engine

#include "engine/vector_math.inl"

namespace baton::engine {
namespace {

inline Halves ToBf16(Floats x) { return Narrow(RoundToBf16(x)); }

}  // namespace
}  // namespace baton::engine

#include "engine/cpu/row_kernels.inl"

#include "engine/cpu/panel_matmul.inl"

#include "engine/cpu/quant_matmul.inl"

#include "engine/cpu/unpack_mxfp4.inl"

#include "engine/cpu/matmul_mxfp4_avx2.inl"

namespace baton::engine::cpu {
namespace {

// As values_of_keys.inl says, four blocks at a time.
void ValuesOfKeys(const uint16_t* keys, int32_t n, int64_t panel_stride,
                  uint16_t* values) {
  constexpr int32_t kBlocks = 4;
  constexpr int32_t kPairs = kPanelColumns / 2;
  constexpr int32_t kSwapMiddle = 0xd8;
  for (int32_t p = 0; p < n / kPanelColumns; ++p) {
    for (int32_t part = 0; part < 4; ++part) {
      const int32_t elements = part / 2 * kBlocks;
      const int32_t slots = part % 2 * kBlocks;
      __m256i rows[kBlocks];
      for (int32_t i = 0; i < kBlocks; ++i) {
        const __m256i row = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(
            keys + (elements + i) * kPanelPairElements + 4 * slots));
        rows[i] = _mm256_shufflehi_epi16(
            _mm256_shufflelo_epi16(row, kSwapMiddle), kSwapMiddle);
      }
      const __m256i even01 = _mm256_unpacklo_epi64(rows[0], rows[1]);
      const __m256i odd01 = _mm256_unpackhi_epi64(rows[0], rows[1]);
      const __m256i even23 = _mm256_unpacklo_epi64(rows[2], rows[3]);
      const __m256i odd23 = _mm256_unpackhi_epi64(rows[2], rows[3]);
      const __m256i turned[kBlocks] = {
          _mm256_permute2x128_si256(even01, even23, 0x20),
          _mm256_permute2x128_si256(odd01, odd23, 0x20),
          _mm256_permute2x128_si256(even01, even23, 0x31),
          _mm256_permute2x128_si256(odd01, odd23, 0x31)};
      for (int32_t i = 0; i < kBlocks; ++i) {
        _mm256_storeu_si256(
            reinterpret_cast<__m256i*>(
                values + (slots + i) * kPanelPairElements + 4 * elements),
            turned[i]);
      }
    }
    keys += kPairs * kPanelPairElements;
    values += panel_stride;
  }
}

}  // namespace

const Kernels kAvx2Kernels = {
    .name = "avx2",
    .matmul = Matmul,
    .matmul_int8 = MatmulInt8,
    .matmul_int4 = MatmulInt4,
    .unpack_mxfp4 = UnpackMxfp4,
    .matmul_mxfp4 = MatmulMxfp4,
    .quantize = Quantize,
    .round_row = RoundRow,
    .rms_norm = RmsNorm,
    .rope = Rope,
    .add = Add,
    .scale = Scale,
    .scale_round = ScaleRound,
    .swiglu = SwigluRow,
    .limited_swiglu = LimitedSwigluRow,
    .geglu = GegluRow,
    .softmax = Softmax,
    .merge_softmax = MergeSoftmax,
    .copy = Copy,
    .values_of_keys = ValuesOfKeys,
    .dequantize_pairs = DequantizePairs,
};

}  // namespace baton::engine::cpu
