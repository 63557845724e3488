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

}  // namespace
}  // namespace baton::engine

#include "engine/vector_math.inl"

#include "engine/cpu/row_kernels.inl"

#include "engine/cpu/panel_matmul.inl"

namespace baton::engine::cpu {

const Kernels kAvx2Kernels = {
    .name = "avx2",
    .matmul = Matmul,
    .round_row = RoundRow,
    .rms_norm = RmsNorm,
    .rms_norm_round = RmsNormRound,
    .rope = Rope,
    .add = Add,
    .scale = Scale,
    .scale_round = ScaleRound,
    .swiglu_round = SwigluRound,
    .softmax = Softmax,
    .pack_keys = PackKeysByWord,
    .pack_values = PackValues,
};

}  // namespace baton::engine::cpu
