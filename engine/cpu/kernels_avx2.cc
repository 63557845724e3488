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
    .dequantize_pairs = DequantizePairs,
};

}  // namespace baton::engine::cpu
