// Products with many rows: tiles of weights and activations in the block's
// memory, four stages deep, shared by the warps of the block. Each warp adds
// its part of the tile up chunk by chunk, as matmul.h says.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_output.cuh"

namespace baton::engine::cuda {

inline constexpr int kMatmulStages = 4;  // as matmul_plan.cc counts memory

// Where 16 bytes of the activations lie in a stage, in units of 16 bytes: rows
// of 64 inputs, whose halves change places in odd rows, so that the eight lanes
// that read together (two rows, four pieces) use all banks.
BATON_DEVICE int32_t ActivationPlace(int32_t row, int32_t piece) {
  return row * 8 + (piece ^ (row % 2 * 4));
}

// Starts the copies of inputs [64 * slice, 64 * slice + 64) into a stage, first
// the weights, then the activations. What lies outside the matrix or behind the
// last row becomes zero.
template <int kOutputs, int kRows>
BATON_DEVICE void FetchSlice(const MatmulArgs& args, int64_t first_tile,
                             int32_t first_row, int32_t slice,
                             unsigned char* stage) {
  constexpr int32_t kTiles = kOutputs / kTileOutputs;
  // 16-byte pieces of a slice of a tile of weights: two groups.
  constexpr int32_t kTilePieces = 2 * kGroupElements / 8;
  const int64_t tile_elements =
      int64_t{args.w.padded_inputs} / kGroupInputs * kGroupElements;
  for (int32_t i = Thread(); i < kTiles * kTilePieces; i += Threads()) {
    const int64_t tile = first_tile + i / kTilePieces;
    const bool there = tile < args.w.output_tiles;
    const uint16_t* const from =
        args.w.tiles + (there ? tile : 0) * tile_elements +
        int64_t{slice} * 2 * kGroupElements + i % kTilePieces * 8;
    CopyAsync16(stage + i * 16, from, there);
  }
  unsigned char* const activations = stage + kOutputs * kInputPadding * 2;
  for (int32_t i = Thread(); i < kRows * 8; i += Threads()) {
    const int32_t row = first_row + i / 8;
    const bool there = row < args.rows;
    const uint16_t* const from = args.x + (there ? row : 0) * args.x_stride +
                                 slice * kInputPadding + i % 8 * 8;
    CopyAsync16(activations + ActivationPlace(i / 8, i % 8) * 16, from, there);
  }
}

// kOutputs x kRows a block; kWarpsOut x kWarpsRow warps.
template <int kOutputs, int kRows, int kWarpsOut, int kWarpsRow,
          MatmulOutput kOutput>
BATON_KERNEL(kWarpsOut* kWarpsRow * 32)
TiledMatmul(MatmulArgs args) {
  // A warp's part, in tiles of 16 outputs and of 8 rows.
  constexpr int kTiles = kOutputs / kWarpsOut / kTileOutputs;
  constexpr int kRowTiles = kRows / kWarpsRow / 8;
  constexpr int32_t kStageBytes = (kOutputs + kRows) * kInputPadding * 2;
  constexpr int32_t kChunkSlices = kChunkInputs / kInputPadding;
  unsigned char* const shared = SharedMemory();
  const int32_t lane = Thread() % 32;
  const int32_t warp = Thread() / 32;
  const int32_t warp_tile = warp / kWarpsRow * kTiles;
  const int32_t warp_row = warp % kWarpsRow * kRowTiles * 8;
  const int32_t first_row = BlockX() * kRows;
  const int64_t first_tile = int64_t{BlockY()} * (kOutputs / kTileOutputs);
  const int32_t slices = args.w.padded_inputs / kInputPadding;

  BATON_UNROLL
  for (int s = 0; s < kMatmulStages - 1; ++s) {
    if (s < slices) {
      FetchSlice<kOutputs, kRows>(args, first_tile, first_row, s,
                                  shared + s * kStageBytes);
    }
    CommitCopies();
  }

  float total[kTiles][kRowTiles][4] = {};
  float sum[kTiles][kRowTiles][4] = {};
  for (int32_t slice = 0; slice < slices; ++slice) {
    AwaitCopies<kMatmulStages - 2>();
    // The slice is there for all, and all are done with the stage that the next
    // copies go to.
    SyncBlock();
    const int32_t ahead = slice + kMatmulStages - 1;
    if (ahead < slices) {
      FetchSlice<kOutputs, kRows>(args, first_tile, first_row, ahead,
                                  shared + ahead % kMatmulStages * kStageBytes);
    }
    CommitCopies();

    const unsigned char* const stage =
        shared + slice % kMatmulStages * kStageBytes;
    const unsigned char* const activations =
        stage + kOutputs * kInputPadding * 2;
    BATON_UNROLL
    for (int group = 0; group < 2; ++group) {
      Word4 x[kRowTiles];
      BATON_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        const int32_t row = warp_row + 8 * r + lane / 4;
        x[r] = Load16(activations +
                      ActivationPlace(row, 4 * group + lane % 4) * 16);
      }
      BATON_UNROLL
      for (int step = 0; step < 2; ++step) {
        BATON_UNROLL
        for (int t = 0; t < kTiles; ++t) {
          const Word4 w = Load16(
              stage + ((warp_tile + t) * 2 + group) * kGroupElements * 2 +
              step * kStepElements * 2 + lane * 16);
          BATON_UNROLL
          for (int r = 0; r < kRowTiles; ++r) {
            Mma(sum[t][r], w.x, x[r].x[2 * step], x[r].x[2 * step + 1]);
          }
        }
      }
    }

    if (slice % kChunkSlices == kChunkSlices - 1 || slice == slices - 1) {
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
    BATON_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const int32_t row = first_row + warp_row + 8 * r;
      if constexpr (kOutput == MatmulOutput::kSwiglu) {
        PutGatedTile(args, tile * kTileOutputs, row, total[t][r],
                     total[t + 1][r]);
      } else {
        PutTile<kOutput>(args, tile * kTileOutputs, row, total[t][r]);
      }
    }
  }
}

}  // namespace baton::engine::cuda
