// What all kernels of matmul.h do with a slice of 64 inputs, in one order. See
// there.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/weight_words.cuh"

namespace baton::engine::cuda {

// Where 16 bytes of the activations lie in a stage, in units of 16 bytes: rows
// of 64 inputs, whose halves change places in odd rows, so that the eight lanes
// that read together (two rows, four pieces) use all banks.
BATON_DEVICE int32_t ActivationPlace(int32_t row, int32_t piece) {
  return row * 8 + (piece ^ (row % 2 * 4));
}

// Which row of x a row's inputs are. source_of(k, row): of the thread's k-th
// one.
struct OwnRow {
  BATON_DEVICE int64_t operator()(int, int32_t row) const { return row; }
};

// Rows of which a thread copies a part.
template <int kRows, int kThreads>
inline constexpr int kFetchedRows = kRows * 8 / kThreads;

// Starts the copies of inputs [64 * slice, 64 * slice + 64) of rows
// [first_row, first_row + kRows) into a stage. Rows behind the last become
// zero. By all kThreads threads of a block.
template <int kRows, int kThreads, typename SourceOf>
BATON_DEVICE void FetchActivations(const MatmulArgs& args,
                                   const SourceOf& source_of, int32_t first_row,
                                   int32_t slice, unsigned char* stage) {
  static_assert(kRows * 8 % kThreads == 0);
  BATON_UNROLL
  for (int k = 0; k < kFetchedRows<kRows, kThreads>; ++k) {
    const int32_t i = Thread() + k * kThreads;
    const int32_t row = first_row + i / 8;
    const bool there = row < args.rows;
    const uint16_t* const from =
        args.x + (there ? source_of(k, row) : 0) * args.x_stride +
        slice * kSliceInputs + i % 8 * 8;
    CopyAsync16(stage + ActivationPlace(i / 8, i % 8) * 16, from, there);
  }
}

// What a lane has of a slice of a tile, as it lies in memory.
template <WeightFormat kFormat>
struct StoredSlice {
  Word4 pieces[SlicePieces(kFormat)];
  uint32_t grids = 0;  // where the format has them
};

// Reads it straight from memory.
template <WeightFormat kFormat>
BATON_DEVICE void LoadSlice(const std::byte* tile, int32_t slice,
                            StoredSlice<kFormat>& to) {
  const std::byte* const from = tile + int64_t{slice} * SliceBytes(kFormat);
  const int32_t lane = Thread() % 32;
  BATON_UNROLL
  for (int i = 0; i < SlicePieces(kFormat); ++i) {
    to.pieces[i] = LoadStream16(from + i * kPieceBytes + lane * 16);
  }
  if constexpr (HasSliceGrids(kFormat)) {
    to.grids = reinterpret_cast<const uint32_t*>(
        from + SlicePieces(kFormat) * kPieceBytes)[lane / 4];
  }
}

// Tiles of outputs that a warp works on at a time. With a scale per slice each
// has sums of its own until it is scaled: two, so that registers suffice and
// products need not wait for each other.
template <WeightFormat kFormat, int kTiles>
inline constexpr int kTilesTogether = HasSliceGrids(kFormat) && kTiles > 2
                                          ? 2
                                          : kTiles;

// The product of a slice of kTiles tiles of weights with kRowTiles times 8
// rows: added to `sum`, as d of Mma. rows(half, r) returns what the lane has of
// the rows: of row 8r + lane / 4, inputs 8 (lane % 4) to + 7 of that half of
// the slice. piece(t, i) returns the lane's 16 bytes of piece i of tile t, and
// slice_grids(t) the grids of outputs lane / 4 (in the low half) and
// lane / 4 + 8: called only where the format has them. used(t, i) is called
// when piece i of tile t is needed no more, and used(t, pieces) for the grids.
struct NothingToDo {
  BATON_DEVICE void operator()(int, int) const {}
};
template <WeightFormat kFormat, int kTiles, int kRowTiles, typename Piece,
          typename SliceGrids, typename Rows, typename Used = NothingToDo>
BATON_DEVICE void MultiplySlice(const Piece& piece,
                                const SliceGrids& slice_grids, const Rows& rows,
                                float (&sum)[kTiles][kRowTiles][4],
                                const Used& used = {}) {
  constexpr int kTogether = kTilesTogether<kFormat, kTiles>;
  constexpr int kPieces = SlicePieces(kFormat);
  static_assert(kTiles % kTogether == 0);
  BATON_UNROLL
  for (int first = 0; first < kTiles; first += kTogether) {
    float part[kTogether][kRowTiles][4] = {};  // not yet scaled
    Word4 x[kRowTiles];                        // of a half
    uint32_t grids[kTogether] = {};
    uint32_t minus[kTogether][2] = {};
    if constexpr (HasSliceGrids(kFormat)) {
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        grids[t] = slice_grids(first + t);
        Int4Zeros(grids[t], minus[t]);
      }
    }
    BATON_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      Word4 w[kTogether];
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) w[t] = piece(first + t, i);
      BATON_UNROLL
      for (int s = 0; s < 4 / kPieces; ++s) {
        const int step = i * (4 / kPieces) + s;
        if (step % 2 == 0) {
          BATON_UNROLL
          for (int r = 0; r < kRowTiles; ++r) x[r] = rows(step / 2, r);
        }
        BATON_UNROLL
        for (int t = 0; t < kTogether; ++t) {
          uint32_t words[4];
          WordsOfStep<kFormat>(w[t], s, minus[t], words);
          BATON_UNROLL
          for (int r = 0; r < kRowTiles; ++r) {
            Mma(HasSliceGrids(kFormat) ? part[t][r] : sum[first + t][r], words,
                x[r].x[step % 2 * 2], x[r].x[step % 2 * 2 + 1]);
          }
        }
      }
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) used(first + t, i);
    }
    if constexpr (HasSliceGrids(kFormat)) {
      BATON_UNROLL
      for (int t = 0; t < kTogether; ++t) {
        const float low = LowScale(grids[t]);
        const float high = HighScale(grids[t]);
        BATON_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          BATON_UNROLL
          for (int j = 0; j < 4; ++j) {
            float& to = sum[first + t][r][j];
            to = FmaRn(part[t][r][j], j < 2 ? low : high, to);
          }
        }
        used(first + t, kPieces);
      }
    }
  }
}

}  // namespace baton::engine::cuda
