// The inner loops of the CPU backend, one set per instruction set, picked once
// per engine (kernel_choice.h) and called through plain function pointers.
//
// Pure functions of their arguments, any thread. No kernel allocates, logs or
// calls the standard library. bfloat16 values are carried as their bits.
//
// This header is included where code may use instructions that not every CPU
// has, so it includes nothing that brings code along.
//
// Same answer everywhere: what a kernel writes for one row depends on that row
// and on its length alone, never on how many rows are handed in together. Sums
// run in an order that is fixed by the position in the row.
#pragma once

#include <cstdint>

namespace baton::engine::cpu {

// Columns of a panel: the unit in which the right-hand side of a matrix product
// is packed, `k_pairs` x 16 columns x 2 consecutive k. The second of a pair is
// zero where k is odd. Panels that are read together may lie interleaved: one
// stream from memory is faster than several.
inline constexpr int32_t kPanelColumns = 16;
// Elements of a panel per pair of k.
inline constexpr int32_t kPanelPairElements = 2 * kPanelColumns;

// Memory that the calling thread is likely to read next: kernels may fetch it
// into the caches while they compute, a share of it with each of their steps.
// Weights come from memory and products from registers; without this, a batch
// would pay for one after the other.
struct NextWeights {
  const char* data = nullptr;
  int64_t bytes = 0;
};

// c[rows][16 * panels] = a[rows][2 * k_pairs] * b, or += when `accumulate`.
// Each element is one sum in the order of k, in float32, of products of
// bfloat16 values; cutting k into several accumulating calls (at even k)
// therefore changes nothing.
struct MatmulArgs {
  const uint16_t* a = nullptr;
  int64_t a_stride = 0;  // elements between rows, even
  int32_t rows = 0;
  const uint16_t* b = nullptr;
  int64_t panel_stride = 0;                  // elements between panels
  int64_t pair_stride = kPanelPairElements;  // elements between pairs of k
  int32_t panels = 0;
  int32_t k_pairs = 0;
  bool accumulate = false;
  float* c = nullptr;
  int64_t c_stride = 0;  // elements between rows
  NextWeights next;
};

// Inputs that share a scale: activations in the int8 and int4 products, and
// int4 weights. Inputs are padded with zeros to a multiple.
inline constexpr int32_t kGroupInputs = 64;

// The product for quantized weights, w = u * scale with
//   int8: u = byte - 128, one scale per column;
//   int4: u = nibble - zero, one scale per column, and a scale and a zero per
//         column and group (int4_grid.h),
// and activations quantized per row and group, x = q * scale:
//   c[row][column] = column scale *
//                    sum over groups of x_scale * group scale * (q . u).
// The dot product of a group is exact (int32); the groups are summed in order
// in float32, so that cutting them into several calls changes nothing.
//
// Panels hold, for four inputs after each other, the 4 bytes of each of the 16
// columns. With int4, byte i of a column holds input 8 j + i in its low and
// input 8 j + 4 + i in its high half.
struct QuantMatmulArgs {
  const int8_t* a = nullptr;
  int64_t a_stride = 0;  // bytes between rows
  // Of the first group of the call, for the first row.
  const float* a_scales = nullptr;
  // Sums of the values of a group.
  const int32_t* a_sums = nullptr;
  int64_t group_stride = 0;  // of a_scales and a_sums between rows
  int32_t rows = 0;
  const uint8_t* b = nullptr;
  int64_t panel_stride = 0;  // bytes between panels
  int64_t step_stride = 0;  // bytes between runs of 4 (int8) or 8 (int4) inputs
  // float32 [16 * panels]; used by the call that has `last`.
  const float* column_scales = nullptr;
  // int4: the codes [16] of the first panel's first group.
  const uint16_t* group_codes = nullptr;
  int64_t code_panel_stride = 0;  // of group_codes between panels
  int64_t code_group_stride = 0;  // of group_codes between groups
  int32_t panels = 0;
  int32_t groups = 0;
  bool accumulate = false;
  bool last = false;
  float* c = nullptr;
  int64_t c_stride = 0;
  NextWeights next;
};

// MXFP4 (engine/mxfp4.h) to bfloat16: `panels` panels that lie interleaved, as
// they lie (engine/packed_layout.h), to panels that do, too, for MatmulArgs.
struct UnpackArgs {
  const uint8_t* b = nullptr;
  int64_t step_stride = 0;  // bytes between runs of 8 inputs
  // Of the first group.
  const uint8_t* exponents = nullptr;
  int64_t exponent_stride = 0;  // bytes between groups of 32 inputs
  int32_t panels = 0;
  int32_t groups = 0;       // of 32 inputs
  uint16_t* out = nullptr;  // [groups * 16 pairs][panels][32]
};

// The product of MatmulArgs with panels of UnpackArgs, to the bit what it is
// with what they become.
struct Mxfp4MatmulArgs {
  const uint16_t* a = nullptr;
  int64_t a_stride = 0;  // elements between rows, even
  int32_t rows = 0;      // at most kFewMxfp4Rows
  UnpackArgs b;          // whose `out` is not used
  bool accumulate = false;
  float* c = nullptr;
  int64_t c_stride = 0;  // elements between rows
};

// So few that what MXFP4 becomes is not worth keeping for the next row.
inline constexpr int32_t kFewMxfp4Rows = 3;

// One query's running softmax over the keys seen so far (Milakov and
// Gimelshein 2018, "Online normalizer calculation for softmax"). Starts with
// max = -infinity, sum = 0.
struct SoftmaxState {
  float max;
  float sum;  // of exp(score - max)
};

struct Kernels {
  const char* name;

  void (*matmul)(const MatmulArgs& args);
  void (*matmul_int8)(const QuantMatmulArgs& args);
  void (*matmul_int4)(const QuantMatmulArgs& args);
  void (*unpack_mxfp4)(const UnpackArgs& args);
  // Null where it is no faster than unpacking and `matmul`.
  void (*matmul_mxfp4)(const Mxfp4MatmulArgs& args);

  // q = x / scale to the nearest integer, where scale = max |x| / 127 is
  // returned: zero when all are (nearly) zero, NaN when a value is not finite.
  // *sum becomes the sum of q.
  float (*quantize)(const float* x, int32_t n, int8_t* q, int32_t* sum);

  // y = x rounded to bfloat16, to nearest even. What is smaller than any normal
  // number may become zero.
  void (*round_row)(const float* x, int32_t n, uint16_t* y);

  // y = x * weight / sqrt(mean(x^2) + eps). x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps,
                   float* y);

  // Rotates the pairs (x[i], x[half + i]) by the angle whose cosine and sine
  // are cos[i], sin[i], for i < half.
  void (*rope)(float* x, const float* cos, const float* sin, int32_t half);

  // x += y.
  void (*add)(float* x, const float* y, int32_t n);

  // x *= factor.
  void (*scale)(float* x, float factor, int32_t n);

  // y = x * factor rounded to bfloat16; a zero is a positive zero.
  void (*scale_round)(const float* x, float factor, int32_t n, uint16_t* y);

  // y = gate / (1 + exp(-gate)) * up. y may be gate.
  void (*swiglu)(const float* gate, const float* up, int32_t n, float* y);

  // The same within a limit, as ExpertsConfig says (model_config.h).
  void (*limited_swiglu)(const float* gate, const float* up, float limit,
                         int32_t n, float* y);

  // The same with GELU for the gate: Activation::kGeluTanh (model_config.h).
  void (*geglu)(const float* gate, const float* up, int32_t n, float* y);

  // Takes the next `n` scores of a query, of which those in [begin, end) are
  // visible; the score proper is scores[i] * factor. Writes their unnormalized
  // probabilities relative to the new maximum (zero for the invisible), updates
  // `state` and returns what earlier sums must be multiplied with.
  // REQUIRES: n is a multiple of 16.
  float (*softmax)(const float* scores, int32_t n, int32_t begin, int32_t end,
                   float factor, SoftmaxState* state, uint16_t* probabilities);

  // Adds what one part of the keys gave to what the parts before it gave:
  // rescales `total` and `sums` and adds `part` and `part_sums`, n values. A
  // part of which nothing was visible changes nothing.
  void (*merge_softmax)(SoftmaxState* total, float* sums,
                        const SoftmaxState& part, const float* part_sums,
                        int32_t n);

  // Copies n values, a multiple of 32: short runs, for which the library's copy
  // is slow to start.
  void (*copy)(const uint16_t* from, int32_t n, uint16_t* to);

  // Of a panel of keys (kv_layout.h), `n` of their elements as panels of
  // values: panel p, `panel_stride` further than the one before, has the
  // elements from 16 p on of the panel's 16 keys. REQUIRES: n is a multiple
  // of 16.
  void (*values_of_keys)(const uint16_t* keys, int32_t n, int64_t panel_stride,
                         uint16_t* values);

  // Turns `n` int8 pairs of a panel of keys or values (kv_layout.h) into
  // bfloat16 pairs: pair i of `pairs` is scaled with low_scales[i % 16] and
  // high_scales[i % 16].
  // REQUIRES: n is a multiple of 16.
  void (*dequantize_pairs)(const int8_t* pairs, int32_t n,
                           const float* low_scales, const float* high_scales,
                           uint16_t* out);
};

}  // namespace baton::engine::cpu
