// Products with few rows: bound by reading the weights once. A block has one
// tile of 16 outputs (two for SwiGLU) and all inputs; each warp takes a chunk
// and reads its weights straight from memory into registers, several slices
// ahead. The chunks' sums meet in the block's memory.
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_experts.cuh"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"

namespace baton::engine::cuda {

// Slices whose weights a warp fetches before it uses any, and as many while it
// uses them: 4 KB in flight for a tile, or a whole chunk.
// Of int4's pairs of tiles two, as registers for four leave room for one block
// on a multiprocessor.
template <WeightFormat kFormat, int kTiles>
inline constexpr int kSlicesAhead = kFormat == WeightFormat::kBf16 ||
                                            (HasSliceGrids(kFormat) &&
                                             kTiles > 1)
                                        ? 2
                                        : 4;

// Blocks of a multiprocessor that there are to be registers for: with more of
// them more weights are on their way. Products that are added to the residual
// have few outputs, and no third block for most multiprocessors: these have
// registers for weights of their own while they use others.
constexpr int StreamBlocks(WeightFormat format, int tiles, int row_tiles,
                           MatmulOutput output) {
  const int sums = tiles * row_tiles;
  const int most = output == MatmulOutput::kAdd ? 2 : 3;
  const int blocks = sums == 1 ? most : sums == 2 ? 2 : 1;
  // Sums that are not yet scaled take registers, too, but those of pairs of
  // tiles leave some (kSlicesAhead).
  return HasSliceGrids(format) && tiles == 1 && blocks > 1 ? blocks - 1
                                                           : blocks;
}

// What a lane holds of some slices of kTiles tiles of weights.
template <WeightFormat kFormat, int kTiles>
struct StreamWeights {
  Word4 pieces[kSlicesAhead<kFormat, kTiles>][kTiles][SlicePieces(kFormat)];
  uint32_t grids[kSlicesAhead<kFormat, kTiles>]
                [kTiles];  // where slices have them
};

// And of two slices of kRowTiles times 8 rows: activations come from caches,
// and need not be that far ahead.
template <int kRowTiles>
struct StreamRows {
  Word4 x[2][2][kRowTiles];
};

// Fetches slices [slice, min(slice + kSlicesAhead, end)); zeros for the rest.
// With kHere at this very place of the kernel, which may be before others have
// ended: no kernel writes weights.
template <WeightFormat kFormat, int kTiles, bool kHere = false>
BATON_DEVICE void FetchWeights(const std::byte* tiles, int64_t tile_bytes,
                               int32_t slice, int32_t end,
                               StreamWeights<kFormat, kTiles>& to) {
  const int32_t lane = Thread() % 32;
  const Word4 zeros = {{0, 0, 0, 0}};
  BATON_UNROLL
  for (int i = 0; i < kSlicesAhead<kFormat, kTiles>; ++i) {
    const bool there = slice + i < end;
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const std::byte* const from =
          tiles + t * tile_bytes + int64_t{slice + i} * SliceBytes(kFormat);
      BATON_UNROLL
      for (int p = 0; p < SlicePieces(kFormat); ++p) {
        const std::byte* const piece = from + p * kPieceBytes + lane * 16;
        if constexpr (kHere) {
          to.pieces[i][t][p] = zeros;
          LoadWeights16(piece, there, to.pieces[i][t][p]);
        } else {
          to.pieces[i][t][p] = there ? LoadStream16(piece) : zeros;
        }
      }
      if constexpr (HasSliceGrids(kFormat)) {
        const auto* const grids = reinterpret_cast<const uint32_t*>(
            from + SlicePieces(kFormat) * kPieceBytes);
        if constexpr (kHere) {
          to.grids[i][t] = 0;
          LoadWeights4(grids + lane / 4, there, to.grids[i][t]);
        } else {
          to.grids[i][t] = there ? grids[lane / 4] : 0;
        }
      }
    }
  }
}

// Fetches slices [slice, min(slice + 2, end)) of the rows; zeros for the rest
// and for rows that are not there.
template <int kRowTiles, typename SourceOf>
BATON_DEVICE void FetchRows(const MatmulArgs& args, const SourceOf& source_of,
                            int32_t slice, int32_t end,
                            StreamRows<kRowTiles>& to) {
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  const Word4 zeros = {{0, 0, 0, 0}};
  BATON_UNROLL
  for (int i = 0; i < 2; ++i) {
    BATON_UNROLL
    for (int half = 0; half < 2; ++half) {
      BATON_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        const int32_t row = 8 * r + g;
        to.x[i][half][r] =
            slice + i < end && row < args.rows
                ? Load16(args.x + source_of(r, row) * args.x_stride +
                         (slice + i) * kSliceInputs + 32 * half + 8 * c)
                : zeros;
      }
    }
  }
}

// The sums of slices [begin, end), which are a chunk; `weights` has the first.
template <WeightFormat kFormat, int kTiles, int kRowTiles, typename SourceOf>
BATON_DEVICE void SumChunk(const MatmulArgs& args, const SourceOf& source_of,
                           const std::byte* tiles, int64_t tile_bytes,
                           int32_t begin, int32_t end,
                           StreamWeights<kFormat, kTiles>& weights,
                           float (&sum)[kTiles][kRowTiles][4]) {
  StreamRows<kRowTiles> rows;
  FetchRows(args, source_of, begin, end, rows);
  for (int32_t first = begin; first < end;
       first += kSlicesAhead<kFormat, kTiles>) {
    StreamWeights<kFormat, kTiles> next_weights;
    FetchWeights(tiles, tile_bytes, first + kSlicesAhead<kFormat, kTiles>, end,
                 next_weights);
    BATON_UNROLL
    for (int pair = 0; pair < kSlicesAhead<kFormat, kTiles>; pair += 2) {
      StreamRows<kRowTiles> next_rows;
      FetchRows(args, source_of, first + pair + 2, end, next_rows);
      // Slices behind the end are zeros: they change no sum but from a negative
      // zero to a positive one, which is the same once it is added to another.
      BATON_UNROLL
      for (int i = 0; i < 2; ++i) {
        MultiplySlice<kFormat>(
            [&](int t, int p) { return weights.pieces[pair + i][t][p]; },
            [&](int t) { return weights.grids[pair + i][t]; },
            [&](int half, int r) { return rows.x[i][half][r]; }, sum);
      }
      rows = next_rows;
    }
    weights = next_weights;
  }
}

// What a block does. With kAwaited, its kernel has called AwaitEarlierKernels.
template <WeightFormat kFormat, int kTiles, int kRowTiles, MatmulOutput kOutput,
          bool kAwaited, typename SourceOf>
BATON_DEVICE void StreamBlock(const MatmulArgs& args,
                              const SourceOf& source_of) {
  static_assert((kOutput == MatmulOutput::kSwiglu) == (kTiles == 2));
  float* const sums = reinterpret_cast<float*>(SharedMemory());
  const int32_t lane = Thread() % 32;
  const int32_t warp = Thread() / 32;
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  const int32_t chunk_slices = ChunkSlices(args.w.padded_inputs);
  const int32_t chunks = Chunks(args.w.padded_inputs);
  const int64_t tile_bytes = int64_t{slices} * SliceBytes(kFormat);
  const int64_t first_tile = int64_t{BlockX()} * kTiles;
  const std::byte* const tiles = args.w.tiles + first_tile * tile_bytes;

  // The warp's chunk, and where it ends.
  const int32_t begin = warp * chunk_slices;
  const int32_t end =
      begin + chunk_slices < slices ? begin + chunk_slices : slices;
  // Weights are there whatever runs before: the first ones come to registers,
  // if these do not have rows to hold besides. Not more to the cache: an H200
  // had lost most of it again by then, and took 0.2 ms of 4.5 longer.
  constexpr bool kEarly = kRowTiles == 1 && !kAwaited;
  StreamWeights<kFormat, kTiles> weights;
  if constexpr (kEarly) {
    FetchWeights<kFormat, kTiles, /*kHere=*/true>(tiles, tile_bytes, begin, end,
                                                  weights);
  }
  if constexpr (!kAwaited) AwaitEarlierKernels();

  if (begin < end) {
    if constexpr (!kEarly) FetchWeights(tiles, tile_bytes, begin, end, weights);
    float sum[kTiles][kRowTiles][4] = {};
    SumChunk(args, source_of, tiles, tile_bytes, begin, end, weights, sum);
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      BATON_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        float* const to =
            sums + (((warp * kTiles + t) * kRowTiles + r) * 32 + lane) * 4;
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) to[i] = sum[t][r][i];
      }
    }
  }
  LetNextKernelBegin();
  // A warp per 8 rows; lanes hold the same elements as in the products.
  const int64_t first_output = first_tile * kTileOutputs;
  TileTarget<kOutput> targets[kTiles];
  if (warp < kRowTiles) {
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      targets[t] =
          ReadTarget<kOutput>(args, first_output + t * kTileOutputs, 8 * warp);
    }
  }
  SyncBlock();
  if (warp >= kRowTiles) return;
  float total[kTiles][4] = {};
  for (int32_t chunk = 0; chunk < chunks; ++chunk) {
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const float* const from =
          sums + (((chunk * kTiles + t) * kRowTiles + warp) * 32 + lane) * 4;
      BATON_UNROLL
      for (int i = 0; i < 4; ++i) total[t][i] = AddRn(total[t][i], from[i]);
    }
  }
  if constexpr (kOutput == MatmulOutput::kSwiglu) {
    PutGatedTile(args, first_output, 8 * warp, targets[0], targets[1], total[0],
                 total[1]);
  } else {
    PutTile<kOutput>(args, first_output, 8 * warp, targets[0], total[0]);
  }
}

template <WeightFormat kFormat, int kTiles, int kRowTiles, MatmulOutput kOutput>
BATON_DENSE_KERNEL(kStreamThreads,
                   StreamBlocks(kFormat, kTiles, kRowTiles, kOutput))
StreamMatmul(MatmulArgs args) {
  StreamBlock<kFormat, kTiles, kRowTiles, kOutput, /*kAwaited=*/false>(
      args, OwnRow());
}

// Of a tile of rows of one expert.
template <WeightFormat kFormat, int kTiles, int kRowTiles, MatmulOutput kOutput>
BATON_DENSE_KERNEL(kStreamThreads,
                   StreamBlocks(kFormat, kTiles, kRowTiles, kOutput))
StreamExperts(ExpertMatmulArgs args) {
  AwaitEarlierKernels();
  const RowTile tile = args.tiles[BlockY()];
  if (tile.rows == 0) return;
  int64_t sources[kRowTiles];
  BATON_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    sources[r] = SourceOfPlace(args, tile, 8 * r + Thread() % 32 / 4);
  }
  StreamBlock<kFormat, kTiles, kRowTiles, kOutput, /*kAwaited=*/true>(
      ArgsOfTile(args, tile), [&](int r, int32_t) { return sources[r]; });
}

}  // namespace baton::engine::cuda
