// What all kernels of matmul.h do with a slice of 64 inputs, in one order. See
// there.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/weight_words.cuh"

namespace baton::engine::cuda {

// Tiles of outputs that a warp works on at a time. With a scale per slice each
// has sums of its own until it is scaled: two, so that registers suffice and
// products need not wait for each other.
template <WeightFormat kFormat, int kTiles>
inline constexpr int kTilesTogether = HasSliceScales(kFormat) && kTiles > 2
                                          ? 2
                                          : kTiles;

// The product of a slice of kTiles tiles of weights with kRowTiles times 8
// rows: added to `sum`, as d of Mma. `x` is what the lane has of the rows: of
// row 8r + lane / 4, inputs 8 (lane % 4) to + 7 of each half of the slice.
// piece(t, i) returns the lane's 16 bytes of piece i of tile t, and
// slice_scales(t) the scales of outputs lane / 4 (in the low half) and
// lane / 4 + 8: called only where the format has them.
template <WeightFormat kFormat, int kTiles, int kRowTiles, typename Piece,
          typename SliceScales>
BATON_DEVICE void MultiplySlice(const Piece& piece,
                                const SliceScales& slice_scales,
                                const Word4 (&x)[2][kRowTiles],
                                float (&sum)[kTiles][kRowTiles][4]) {
  constexpr int kTogether = kTilesTogether<kFormat, kTiles>;
  constexpr int kPieces = SlicePieces(kFormat);
  static_assert(kTiles % kTogether == 0);
  BATON_UNROLL
  for (int first = 0; first < kTiles; first += kTogether) {
    float part[kTogether][kRowTiles][4] = {};  // not yet scaled
    BATON_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      Word4 w[kTogether];
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) w[t] = piece(first + t, i);
      BATON_UNROLL
      for (int s = 0; s < 4 / kPieces; ++s) {
        const int step = i * (4 / kPieces) + s;
        BATON_UNROLL
        for (int t = 0; t < kTogether; ++t) {
          uint32_t words[4];
          WordsOfStep<kFormat>(w[t], s, words);
          BATON_UNROLL
          for (int r = 0; r < kRowTiles; ++r) {
            const Word4& rows = x[step / 2][r];
            Mma(HasSliceScales(kFormat) ? part[t][r] : sum[first + t][r], words,
                rows.x[step % 2 * 2], rows.x[step % 2 * 2 + 1]);
          }
        }
      }
    }
    if constexpr (HasSliceScales(kFormat)) {
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        const uint32_t scales = slice_scales(first + t);
        const float low = BitsFloat(scales << 16);
        const float high = BitsFloat(scales & 0xffff0000u);
        BATON_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          BATON_UNROLL
          for (int j = 0; j < 4; ++j) {
            float& to = sum[first + t][r][j];
            to = FmaRn(part[t][r][j], j < 2 ? low : high, to);
          }
        }
      }
    }
  }
}

}  // namespace baton::engine::cuda
