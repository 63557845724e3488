// Products with many rows: tiles of weights and activations in the block's
// memory, four stages deep, shared by the warps of the block. Each warp adds
// its part of the tile up chunk by chunk, as matmul.h says.
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_experts.cuh"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/matmul_slice.cuh"

namespace baton::engine::cuda {

inline constexpr int kMatmulStages = 4;  // as matmul_plan.cc counts memory

// Starts the copies of inputs [64 * slice, 64 * slice + 64) into a stage, first
// the weights as they lie in memory, then the activations. What lies outside
// the matrix or behind the last row becomes zero.
template <WeightFormat kFormat, int kOutputs, int kRows, int kThreads,
          typename SourceOf>
BATON_DEVICE void FetchSlice(const MatmulArgs& args, const SourceOf& source_of,
                             int64_t first_tile, int32_t first_row,
                             int32_t slice, unsigned char* stage) {
  constexpr int32_t kTiles = kOutputs / kTileOutputs;
  constexpr int32_t kSliceBytes = SliceBytes(kFormat);
  constexpr int32_t kCopies = kSliceBytes / 16;  // of a tile
  const int64_t tile_bytes = TileBytes(kFormat, args.w.padded_inputs);
  for (int32_t i = Thread(); i < kTiles * kCopies; i += Threads()) {
    const int64_t tile = first_tile + i / kCopies;
    const bool there = tile < args.w.output_tiles;
    const std::byte* const from =
        args.w.tiles + (there ? tile : 0) * tile_bytes +
        int64_t{slice} * kSliceBytes + i % kCopies * 16;
    CopyAsync16(stage + i * 16, from, there);
  }
  unsigned char* const activations = stage + kTiles * kSliceBytes;
  FetchActivations<kRows, kThreads>(args, source_of, first_row, slice,
                                    activations);
}

// kOutputs x kRows a block, from that row on; kWarpsOut x kWarpsRow warps.
template <WeightFormat kFormat, int kOutputs, int kRows, int kWarpsOut,
          int kWarpsRow, MatmulOutput kOutput, typename SourceOf>
BATON_DEVICE void TiledBlock(const MatmulArgs& args, const SourceOf& source_of,
                             int32_t first_row) {
  // A warp's part, in tiles of 16 outputs and of 8 rows.
  constexpr int kThreads = kWarpsOut * kWarpsRow * 32;
  constexpr int kTiles = kOutputs / kWarpsOut / kTileOutputs;
  constexpr int kRowTiles = kRows / kWarpsRow / 8;
  constexpr int32_t kSliceBytes = SliceBytes(kFormat);
  constexpr int32_t kWeightBytes = kOutputs / kTileOutputs * kSliceBytes;
  constexpr int32_t kStageBytes = kWeightBytes + kRows * kSliceInputs * 2;
  unsigned char* const shared = SharedMemory();
  const int32_t lane = Thread() % 32;
  const int32_t warp = Thread() / 32;
  const int32_t warp_tile = warp / kWarpsRow * kTiles;
  const int32_t warp_row = warp % kWarpsRow * kRowTiles * 8;
  const int64_t first_tile = int64_t{BlockY()} * (kOutputs / kTileOutputs);
  const int32_t slices = args.w.padded_inputs / kSliceInputs;

  BATON_UNROLL
  for (int s = 0; s < kMatmulStages - 1; ++s) {
    if (s < slices) {
      FetchSlice<kFormat, kOutputs, kRows, kThreads>(
          args, source_of, first_tile, first_row, s, shared + s * kStageBytes);
    }
    CommitCopies();
  }

  float total[kTiles][kRowTiles][4] = {};
  float sum[kTiles][kRowTiles][4] = {};
  int32_t chunk_end = ChunkSlices(args.w.padded_inputs);
  for (int32_t slice = 0; slice < slices; ++slice) {
    AwaitCopies<kMatmulStages - 2>();
    // The slice is there for all, and all are done with the stage that the next
    // copies go to.
    SyncBlock();
    const int32_t ahead = slice + kMatmulStages - 1;
    if (ahead < slices) {
      FetchSlice<kFormat, kOutputs, kRows, kThreads>(
          args, source_of, first_tile, first_row, ahead,
          shared + ahead % kMatmulStages * kStageBytes);
    }
    CommitCopies();

    const unsigned char* const stage =
        shared + slice % kMatmulStages * kStageBytes;
    const unsigned char* const weights = stage + warp_tile * kSliceBytes;
    MultiplySlice<kFormat>(
        [&](int t, int p) {
          return Load16(weights + t * kSliceBytes + p * kPieceBytes +
                        lane * 16);
        },
        [&](int t) {
          const unsigned char* const grids =
              weights + t * kSliceBytes + SlicePieces(kFormat) * kPieceBytes;
          return reinterpret_cast<const uint32_t*>(grids)[lane / 4];
        },
        [&](int half, int r) {
          const int32_t row = warp_row + 8 * r + lane / 4;
          return Load16(stage + kWeightBytes +
                        ActivationPlace(row, 4 * half + lane % 4) * 16);
        },
        sum);

    if (slice + 1 == chunk_end || slice == slices - 1) {
      chunk_end += ChunkSlices(args.w.padded_inputs);
      BATON_UNROLL
      for (int t = 0; t < kTiles; ++t) {
        BATON_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          BATON_UNROLL
          for (int i = 0; i < 4; ++i) {
            total[t][r][i] = AddRn(total[t][r][i], sum[t][r][i]);
            sum[t][r][i] = 0.0f;
          }
        }
      }
    }
  }
  AwaitCopies<0>();  // empty groups only

  constexpr int kTileStep = kOutput == MatmulOutput::kSwiglu ? 2 : 1;
  static_assert(kTiles % kTileStep == 0);
  BATON_UNROLL
  for (int t = 0; t < kTiles; t += kTileStep) {
    const int64_t tile = first_tile + warp_tile + t;
    if (tile >= args.w.output_tiles) continue;
    TileTarget<kOutput> targets[kTileStep][kRowTiles];
    BATON_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      BATON_UNROLL
      for (int i = 0; i < kTileStep; ++i) {
        targets[i][r] = ReadTarget<kOutput>(args, (tile + i) * kTileOutputs,
                                            first_row + warp_row + 8 * r);
      }
    }
    BATON_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const int32_t row = first_row + warp_row + 8 * r;
      if constexpr (kOutput == MatmulOutput::kSwiglu) {
        PutGatedTile(args, tile * kTileOutputs, row, targets[0][r],
                     targets[1][r], total[t][r], total[t + 1][r]);
      } else {
        PutTile<kOutput>(args, tile * kTileOutputs, row, targets[0][r],
                         total[t][r]);
      }
    }
  }
}

template <WeightFormat kFormat, int kOutputs, int kRows, int kWarpsOut,
          int kWarpsRow, MatmulOutput kOutput>
BATON_KERNEL(kWarpsOut* kWarpsRow * 32)
TiledMatmul(MatmulArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  TiledBlock<kFormat, kOutputs, kRows, kWarpsOut, kWarpsRow, kOutput>(
      args, OwnRow(), BlockX() * kRows);
}

// Of a tile of rows of one expert.
template <WeightFormat kFormat, int kOutputs, int kRows, int kWarpsOut,
          int kWarpsRow, MatmulOutput kOutput>
BATON_KERNEL(kWarpsOut* kWarpsRow * 32)
TiledExperts(ExpertMatmulArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  constexpr int kThreads = kWarpsOut * kWarpsRow * 32;
  constexpr int kFetched = kFetchedRows<kRows, kThreads>;
  const RowTile tile = args.tiles[BlockX()];
  if (tile.rows == 0) return;
  int64_t sources[kFetched];
  BATON_UNROLL
  for (int k = 0; k < kFetched; ++k) {
    sources[k] = SourceOfPlace(args, tile, (Thread() + k * kThreads) / 8);
  }
  TiledBlock<kFormat, kOutputs, kRows, kWarpsOut, kWarpsRow, kOutput>(
      ArgsOfTile(args, tile), [&](int k, int32_t) { return sources[k]; },
      /*first_row=*/0);
}

}  // namespace baton::engine::cuda
