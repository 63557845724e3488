// From what a lane read of a slice of weights (weight_tiles.h) to the words
// that a product on tensor cores takes: two bfloat16 each. Exact: every int4,
// int8 and e4m3 is a bfloat16, and so is an int4 less its zero. Their scales
// come later (matmul_slice.cuh, matmul_output.cuh).
//
// Three or four instructions for two weights, with bits alone and one operation
// that needs no rounding, so that any target gets the same.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Two bfloat16 of the same value.
BATON_DEVICE constexpr uint32_t Twice(uint32_t bf16) {
  return bf16 << 16 | bf16;
}

inline constexpr uint32_t kBf16One = 0x3f80;

// Bytes 0 and 2 of a word, as int8.
BATON_DEVICE uint32_t Int8Pair(uint32_t word) {
  // The lower 7 bits behind the point of 128: 128 + q for q >= 0, and, as q is
  // stored as 256 + q, 256 + q below.
  const uint32_t raised = (word & 0x007f007fu) | Twice(0x4300);
  // Minus 128; with the eighth bit set, minus 256.
  const uint32_t minus = (word & 0x00800080u) | Twice(0xc300);
  return FmaBf16x2(raised, Twice(kBf16One), minus);
}

// Bytes 1 and 3 of a word, as e4m3.
BATON_DEVICE uint32_t Fp8Pair(uint32_t word) {
  // Exponent and fraction where a bfloat16 has them: but for the exponent's
  // bias, which is 120 less, the same number, also where it is subnormal.
  const uint32_t small = (word & 0x80008000u) | ((word & 0x7f007f00u) >> 4);
  return FmaBf16x2(small, Twice(0x7b80), Twice(0x8000));  // * 2^120 - 0
}

// SliceScale of outputs g and g + 8, whose grids lie in a word.
BATON_DEVICE float LowScale(uint32_t grids) { return SliceScale(grids); }
BATON_DEVICE float HighScale(uint32_t grids) {
  return BitsFloat((grids >> 4 & 0x0fff0000u) | 96u << 23);
}

// What Int4Pair takes for outputs g and g + 8, of their grids in the low and
// the high half of a word: twice -(128 + zero).
BATON_DEVICE void Int4Zeros(uint32_t grids, uint32_t (&minus)[2]) {
  const uint32_t both = (grids & 0x000f000fu) | Twice(0xc300);
  minus[0] = Twice(both & 0xffffu);
  minus[1] = Twice(both >> 16);
}

// The lowest 4 bits of each half of a word, less a zero.
BATON_DEVICE uint32_t Int4Pair(uint32_t word, uint32_t minus) {
  const uint32_t raised = (word & 0x000f000fu) | Twice(0x4300);  // 128 + q
  return FmaBf16x2(raised, Twice(kBf16One), minus);
}

// The four words of step `step` of a piece, which is one of
// 4 / SlicePieces(kFormat). `minus` is that of Int4Zeros, where slices have
// grids.
template <WeightFormat kFormat>
BATON_DEVICE void WordsOfStep(const Word4& piece, int step,
                              const uint32_t (&minus)[2],
                              uint32_t (&words)[4]) {
  if constexpr (kFormat == WeightFormat::kBf16) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = piece.x[i];
  } else if constexpr (kFormat == WeightFormat::kInt4) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = Int4Pair(piece.x[step] >> 4 * i, minus[i % 2]);
    }
  } else {
    BATON_UNROLL
    for (int i = 0; i < 2; ++i) {
      const uint32_t word = piece.x[2 * step + i];
      if constexpr (kFormat == WeightFormat::kInt8) {
        words[2 * i] = Int8Pair(word);
        words[2 * i + 1] = Int8Pair(word >> 8);
      } else {
        words[2 * i] = Fp8Pair(word << 8);
        words[2 * i + 1] = Fp8Pair(word);
      }
    }
  }
}

}  // namespace baton::engine::cuda
