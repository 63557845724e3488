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
// zero where k is odd.
inline constexpr int32_t kPanelColumns = 16;
// Elements of a panel per pair of k.
inline constexpr int32_t kPanelPairElements = 2 * kPanelColumns;

// c[rows][16 * panels] = a[rows][2 * k_pairs] * b, or += when `accumulate`.
// Each element is one sum in the order of k, in float32, of products of
// bfloat16 values; cutting k into several accumulating calls (at even k)
// therefore changes nothing.
struct MatmulArgs {
  const uint16_t* a = nullptr;
  int64_t a_stride = 0;  // elements between rows, even
  int32_t rows = 0;
  const uint16_t* b = nullptr;
  int64_t panel_stride = 0;  // elements between panels
  int32_t panels = 0;
  int32_t k_pairs = 0;
  bool accumulate = false;
  float* c = nullptr;
  int64_t c_stride = 0;  // elements between rows
};

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

  // y = x rounded to bfloat16, to nearest even.
  void (*round_row)(const float* x, int32_t n, uint16_t* y);

  // y = x * weight / sqrt(mean(x^2) + eps). x and y may be the same.
  void (*rms_norm)(const float* x, const float* weight, int32_t n, float eps,
                   float* y);

  // rms_norm, rounded to bfloat16.
  void (*rms_norm_round)(const float* x, const float* weight, int32_t n,
                         float eps, uint16_t* y);

  // Rotates the pairs (x[i], x[half + i]) by the angle whose cosine and sine
  // are cos[i], sin[i], for i < half.
  void (*rope)(float* x, const float* cos, const float* sin, int32_t half);

  // x += y.
  void (*add)(float* x, const float* y, int32_t n);

  // x *= factor.
  void (*scale)(float* x, float factor, int32_t n);

  // y = x * factor rounded to bfloat16; a zero is a positive zero.
  void (*scale_round)(const float* x, float factor, int32_t n, uint16_t* y);

  // y = gate / (1 + exp(-gate)) * up, rounded to bfloat16.
  void (*swiglu_round)(const float* gate, const float* up, int32_t n,
                       uint16_t* y);

  // Takes the next `n` scores of a query, of which those in [begin, end) are
  // visible; the score proper is scores[i] * factor. Writes their unnormalized
  // probabilities relative to the new maximum (zero for the invisible), updates
  // `state` and returns what earlier sums must be multiplied with.
  // REQUIRES: n is a multiple of 16.
  float (*softmax)(const float* scores, int32_t n, int32_t begin, int32_t end,
                   float factor, SoftmaxState* state, uint16_t* probabilities);

  // Packs 16 keys of `head_dim` values (even) into one panel of head_dim / 2
  // pairs, a key per column: the right-hand side of query times key.
  void (*pack_keys)(const uint16_t* const keys[kPanelColumns], int32_t head_dim,
                    uint16_t* panel);

  // Packs `rows` values (even) of `head_dim` elements into ceil(head_dim / 16)
  // panels of rows / 2 pairs, an element per column: the right-hand side of
  // probability times value. Columns beyond head_dim are zero.
  void (*pack_values)(const uint16_t* const* values, int32_t rows,
                      int32_t head_dim, uint16_t* panels, int64_t panel_stride);
};

}  // namespace baton::engine::cpu
