// Products with 17 to 64 rows: bound by reading the weights once, and by
// bringing activations to where these are multiplied. A block has 256 outputs
// (128 where clusters would be of eight) and all rows, so that activations,
// which the warps share in the block's memory, are a quarter of what it reads
// from the caches. Weights go from memory to registers, as in
// matmul_stream.cuh, and far ahead of that to the cache that all blocks share.
//
// Matrices with few outputs have too few such blocks for all multiprocessors to
// read at a time. Their inputs are shared out among a cluster of blocks, by
// chunks; these keep their chunks' sums, and when all are there, each block
// adds up those of some rows, in order, from the memory of all.
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_chunks.cuh"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"
#include "engine/cuda/matmul_wide.h"

namespace baton::engine::cuda {

// Slices that weights are brought to the cache ahead of their use: with 132
// blocks at work 4 KB each for eight warps, several times what memory of 4.8
// TB/s needs to hide 1 us.
inline constexpr int32_t kWideAhead = 6;

// Chunks whose sums are asked for at once, in the end.
inline constexpr int kWideChunksAtOnce = 4;

// What a lane has of a slice of the warp's tiles.
template <WeightFormat kFormat, int kWarpTiles>
BATON_DEVICE void LoadWide(const std::byte* const (&tiles)[kWarpTiles],
                           int32_t slice,
                           StoredSlice<kFormat> (&to)[kWarpTiles]) {
  BATON_UNROLL
  for (int t = 0; t < kWarpTiles; ++t) LoadSlice(tiles[t], slice, to[t]);
}

// Has slices [first, end) of the warp's tiles brought to the cache: each half
// of the warp those of a tile.
template <WeightFormat kFormat, int kWarpTiles>
BATON_DEVICE void PrefetchWide(const std::byte* const (&tiles)[kWarpTiles],
                               int32_t first, int32_t end) {
  static_assert(kWarpTiles <= 2);
  constexpr int32_t kLineBytes = 128;
  constexpr int32_t kLanes = 32 / kWarpTiles;
  const std::byte* const tile =
      Thread() % 32 < kLanes ? tiles[0] : tiles[kWarpTiles - 1];
  const std::byte* const from = tile + int64_t{first} * SliceBytes(kFormat);
  const int32_t bytes = (end - first) * SliceBytes(kFormat);
  for (int32_t at = Thread() % kLanes * kLineBytes; at < bytes;
       at += kLanes * kLineBytes) {
    PrefetchToL2(from + at);
  }
}

// Where the four sums of a thread for a tile and a row tile lie, in units of 16
// bytes: those of neighbouring threads side by side.
BATON_DEVICE int32_t WideSumPlace(int32_t tile, int32_t row_tile,
                                  int32_t row_tiles) {
  return (tile * row_tiles + row_tile) * kWideThreads + Thread();
}

// A block of the product's outputs, in y; those of x share its inputs out, and
// are a cluster where there are several.
template <WeightFormat kFormat, int kWarpTiles, int kRowTiles,
          MatmulOutput kOutput>
BATON_DENSE_KERNEL(kWideThreads, kWarpTiles == 1 ? 2 : 1)
WideMatmul(MatmulArgs args, int32_t blocks) {
  constexpr int32_t kRows = 8 * kRowTiles;
  constexpr int32_t kStageBytes = WideStageBytes(kRows);
  constexpr int32_t kSumBytes = WideSumBytes(kRows, kWarpTiles);
  const int32_t lane = Thread() % 32;
  const int64_t first_tile =
      (int64_t{BlockY()} * (kWideThreads / 32) + Thread() / 32) * kWarpTiles;
  // Tiles that are not there are read as the last one, and go nowhere.
  const std::byte* tiles[kWarpTiles];
  BATON_UNROLL
  for (int t = 0; t < kWarpTiles; ++t) {
    const int64_t tile = first_tile + t < args.w.output_tiles
                             ? first_tile + t
                             : args.w.output_tiles - 1;
    tiles[t] = args.w.tiles + tile * TileBytes(kFormat, args.w.padded_inputs);
  }
  const int32_t slices = args.w.padded_inputs / kSliceInputs;
  const int32_t chunk_slices = ChunkSlices(args.w.padded_inputs);
  const int32_t chunks = Chunks(args.w.padded_inputs);
  // The block's own.
  const int32_t own_chunks = WideChunks(chunks, blocks);
  const int32_t wanted = BlockX() * own_chunks * chunk_slices;
  const int32_t begin = wanted < slices ? wanted : slices;
  const int32_t end = begin + own_chunks * chunk_slices < slices
                          ? begin + own_chunks * chunk_slices
                          : slices;
  // Weights are there whatever runs before.
  PrefetchWide<kFormat>(tiles, begin,
                        begin + kWideAhead < end ? begin + kWideAhead : end);
  LetNextKernelBegin();
  AwaitEarlierKernels();
  unsigned char* const stages = SharedMemory();
  unsigned char* const kept = stages + kWideStages * kStageBytes;

  BATON_UNROLL
  for (int s = 0; s < kWideStages - 1; ++s) {
    if (begin + s < end) {
      FetchActivations<kRows, kWideThreads>(args, OwnRow(), 0, begin + s,
                                            stages + s * kStageBytes);
    }
    CommitCopies();
  }
  StoredSlice<kFormat> weights[kWarpTiles];
  if (begin < end) LoadWide<kFormat>(tiles, begin, weights);

  float sum[kWarpTiles][kRowTiles][4] = {};
  int32_t chunk_end = begin + chunk_slices;
  int32_t chunk = 0;  // of the block's own
  for (int32_t slice = begin; slice < end; ++slice) {
    // Before anything that waits.
    if (slice + kWideAhead < end) {
      PrefetchWide<kFormat>(tiles, slice + kWideAhead, slice + kWideAhead + 1);
    }
    AwaitCopies<kWideStages - 2>();
    // The slice is there for all, and all are done with the stage that the next
    // copies go to.
    SyncBlock();
    const int32_t stage = (slice - begin) % kWideStages;
    const int32_t ahead = slice + kWideStages - 1;
    if (ahead < end) {
      FetchActivations<kRows, kWideThreads>(
          args, OwnRow(), 0, ahead,
          stages + (stage + kWideStages - 1) % kWideStages * kStageBytes);
    }
    CommitCopies();

    const unsigned char* const rows = stages + stage * kStageBytes;
    MultiplySlice<kFormat>(
        [&](int t, int p) { return weights[t].pieces[p]; },
        [&](int t) { return weights[t].grids; },
        [&](int half, int r) {
          return Load16(rows +
                        ActivationPlace(8 * r + lane / 4, 4 * half + lane % 4) *
                            16);
        },
        sum,
        // The next slice's weights into the same registers, each as soon as
        // these are free, and not where the compiler would have them: behind
        // the next barrier.
        [&](int t, int p) {
          const bool more = slice + 1 < end;
          const std::byte* const from =
              tiles[t] + int64_t{slice + 1} * SliceBytes(kFormat);
          if (p < SlicePieces(kFormat)) {
            LoadWeights16(from + p * kPieceBytes + lane * 16, more,
                          weights[t].pieces[p]);
          } else {
            LoadWeights4(from + p * kPieceBytes + lane / 4 * 4, more,
                         weights[t].grids);
          }
        });

    if (slice + 1 == chunk_end || slice + 1 == end) {
      chunk_end += chunk_slices;
      BATON_UNROLL
      for (int t = 0; t < kWarpTiles; ++t) {
        BATON_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          unsigned char* const to = kept +
                                    (blocks == 1 ? 0 : chunk) * kSumBytes +
                                    WideSumPlace(t, r, kRowTiles) * 16;
          if (blocks == 1) {
            float total[4] = {};
            if (chunk > 0) LoadSums(to, total);
            BATON_UNROLL
            for (int i = 0; i < 4; ++i) {
              sum[t][r][i] = AddRn(total[i], sum[t][r][i]);
            }
          }
          StoreSums(to, sum[t][r]);
          BATON_UNROLL
          for (int i = 0; i < 4; ++i) sum[t][r][i] = 0.0f;
        }
      }
      ++chunk;
    }
  }
  AwaitCopies<0>();  // empty groups only

  if (blocks > 1) SyncCluster();
  // Its sums are in memory, so that nothing is gained by doing this text more
  // than once.
  BATON_NO_UNROLL
  for (int r = BlockX(); r < kRowTiles; r += blocks) {
    float y[kWarpTiles][4] = {};
    if (blocks == 1) {
      BATON_UNROLL
      for (int t = 0; t < kWarpTiles; ++t) {
        LoadSums(kept + WideSumPlace(t, r, kRowTiles) * 16, y[t]);
      }
    } else {
      JoinChunks<kWarpTiles, kWideChunksAtOnce>(
          kept, kSumBytes, chunks, own_chunks,
          [&](int t) { return WideSumPlace(t, r, kRowTiles); }, y);
    }
    // Behind the sums: asked for before them, they have ptxas wait for each.
    TileTarget<kOutput> targets[kWarpTiles];
    BATON_UNROLL
    for (int t = 0; t < kWarpTiles; ++t) {
      targets[t] =
          ReadTarget<kOutput>(args, (first_tile + t) * kTileOutputs, 8 * r);
    }
    if constexpr (kOutput == MatmulOutput::kSwiglu) {
      if (first_tile < args.w.output_tiles) {
        PutGatedTile(args, first_tile * kTileOutputs, 8 * r, targets[0],
                     targets[1], y[0], y[1]);
      }
    } else {
      BATON_UNROLL
      for (int t = 0; t < kWarpTiles; ++t) {
        PutTile<kOutput>(args, (first_tile + t) * kTileOutputs, 8 * r,
                         targets[t], y[t]);
      }
    }
  }
  // Others may read this block's sums still: a block arrives when it has what
  // it read of theirs, which machine_code_test.py sees to.
  if (blocks > 1) EndCluster();
}

}  // namespace baton::engine::cuda
