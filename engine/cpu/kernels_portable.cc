// The kernels on vectors of four floats in plain C++: what every CPU can run.
#include "engine/cpu/kernel_sets.h"

namespace baton::engine {
namespace {

constexpr int32_t kLanes = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));

// Rows of a matrix product whose sums stay in registers together.
constexpr int32_t kTileRows = 2;

inline Floats Set(float x) { return Floats{x, x, x, x}; }
inline Floats Fma(Floats a, Floats b, Floats c) { return a * b + c; }
inline float SumLanes(Floats v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float MaxLanes(Floats v) {
  const float a = v[0] > v[2] ? v[0] : v[2];
  const float b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

}  // namespace
}  // namespace baton::engine

#include "engine/vector_math.inl"

#include "engine/cpu/row_kernels.inl"

#include "engine/cpu/panel_matmul.inl"

namespace baton::engine::cpu {

const Kernels kPortableKernels = {
    .name = "portable",
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
