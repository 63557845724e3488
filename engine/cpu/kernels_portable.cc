// The kernels on vectors of four floats in plain C++: what every CPU can run.
#include "engine/cpu/kernel_sets.h"

namespace baton::engine {
namespace {

constexpr int32_t kLanes = 4;
typedef float Floats __attribute__((vector_size(16)));
typedef int32_t Ints __attribute__((vector_size(16)));
typedef uint32_t Words __attribute__((vector_size(16)));
typedef uint16_t Halves __attribute__((vector_size(8)));
typedef int8_t Bytes __attribute__((vector_size(4)));

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

// Four signed bytes, and the four unsigned bytes of each lane.
struct Quad {
  int32_t byte[4];
};
inline Quad SetQuad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
struct WeightQuads {
  Ints byte[4];
};
inline WeightQuads SplitQuads(Words bytes) {
  return {{(Ints)(bytes & 0xffu), (Ints)(bytes >> 8 & 0xffu),
           (Ints)(bytes >> 16 & 0xffu), (Ints)(bytes >> 24)}};
}
inline Ints TimesHalf(Ints a, int32_t b) { return a * b; }
inline Ints DotQuads(Ints sum, const WeightQuads& w, const Quad& a) {
  for (int32_t i = 0; i < 4; ++i) sum += w.byte[i] * a.byte[i];
  return sum;
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

#include "engine/cpu/values_of_keys.inl"

namespace baton::engine::cpu {

const Kernels kPortableKernels = {
    .name = "portable",
    .matmul = Matmul,
    .matmul_int8 = MatmulInt8,
    .matmul_int4 = MatmulInt4,
    .unpack_mxfp4 = UnpackMxfp4,
    .matmul_mxfp4 = nullptr,
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
