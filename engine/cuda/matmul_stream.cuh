// Products with few rows: bound by reading the weights once. A block has one
// tile of 16 outputs (two for SwiGLU) and all inputs; each warp takes chunks
// and reads their weights straight from memory into registers, several groups
// ahead. The chunks' sums meet in the block's memory.
//
// Never ran on a GPU: run on the emulated device only (docs/gpu.md).
#pragma once

#include "device_target.h"
#include "engine/cuda/matmul_output.cuh"

namespace baton::engine::cuda {

// Groups of 32 inputs whose weights a warp fetches before it uses any.
inline constexpr int kGroupsAhead = 4;

// What a warp holds of some groups: weights of kTiles tiles of outputs, and
// activations of kRowTiles times 8 rows.
template <int kTiles, int kRowTiles>
struct StreamFragments {
  Word4 w[kGroupsAhead][kTiles][2];
  Word4 x[kGroupsAhead][kRowTiles];
};

// Fetches groups [group, min(group + kGroupsAhead, end)); zeros for the rest
// and for rows that are not there.
template <int kTiles, int kRowTiles>
BATON_DEVICE void FetchGroups(const MatmulArgs& args, const uint16_t* tiles,
                              int64_t tile_elements, int32_t group, int32_t end,
                              StreamFragments<kTiles, kRowTiles>& to) {
  const int32_t lane = Thread() % 32;
  const int32_t g = lane / 4;
  const int32_t c = lane % 4;
  const Word4 zeros = {{0, 0, 0, 0}};
  BATON_UNROLL
  for (int i = 0; i < kGroupsAhead; ++i) {
    const bool there = group + i < end;
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      const uint16_t* const from = tiles + t * tile_elements +
                                   int64_t{group + i} * kGroupElements +
                                   lane * 8;
      to.w[i][t][0] = there ? LoadStream16(from) : zeros;
      to.w[i][t][1] = there ? LoadStream16(from + kStepElements) : zeros;
    }
    BATON_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const int32_t row = 8 * r + g;
      to.x[i][r] = there && row < args.rows
                       ? Load16(args.x + row * args.x_stride +
                                (group + i) * kGroupInputs + 8 * c)
                       : zeros;
    }
  }
}

template <int kTiles, int kRowTiles, MatmulOutput kOutput>
BATON_KERNEL(256)
StreamMatmul(MatmulArgs args) {
  static_assert((kOutput == MatmulOutput::kSwiglu) == (kTiles == 2));
  float* const sums = reinterpret_cast<float*>(SharedMemory());
  const int32_t lane = Thread() % 32;
  const int32_t warp = Thread() / 32;
  const int32_t warps = Threads() / 32;
  const int32_t groups = args.w.padded_inputs / kGroupInputs;
  constexpr int32_t kChunkGroups = kChunkInputs / kGroupInputs;
  const int32_t chunks = (groups + kChunkGroups - 1) / kChunkGroups;
  const int64_t tile_elements = int64_t{groups} * kGroupElements;
  const int64_t first_tile = int64_t{BlockX()} * kTiles;
  const uint16_t* const tiles = args.w.tiles + first_tile * tile_elements;

  for (int32_t chunk = warp; chunk < chunks; chunk += warps) {
    const int32_t begin = chunk * kChunkGroups;
    const int32_t end =
        begin + kChunkGroups < groups ? begin + kChunkGroups : groups;
    float sum[kTiles][kRowTiles][4] = {};
    StreamFragments<kTiles, kRowTiles> now;
    FetchGroups(args, tiles, tile_elements, begin, end, now);
    for (int32_t group = begin; group < end; group += kGroupsAhead) {
      StreamFragments<kTiles, kRowTiles> next;
      FetchGroups(args, tiles, tile_elements, group + kGroupsAhead, end, next);
      // Groups behind the end are zeros: they change no sum.
      BATON_UNROLL
      for (int i = 0; i < kGroupsAhead; ++i) {
        BATON_UNROLL
        for (int step = 0; step < 2; ++step) {
          BATON_UNROLL
          for (int t = 0; t < kTiles; ++t) {
            BATON_UNROLL
            for (int r = 0; r < kRowTiles; ++r) {
              Mma(sum[t][r], now.w[i][t][step].x, now.x[i][r].x[2 * step],
                  now.x[i][r].x[2 * step + 1]);
            }
          }
        }
      }
      now = next;
    }
    BATON_UNROLL
    for (int t = 0; t < kTiles; ++t) {
      BATON_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        float* const to =
            sums + (((chunk * kTiles + t) * kRowTiles + r) * 32 + lane) * 4;
        BATON_UNROLL
        for (int i = 0; i < 4; ++i) to[i] = sum[t][r][i];
      }
    }
  }
  SyncBlock();

  // A warp per 8 rows; lanes hold the same elements as in the products.
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
  const int64_t first_output = first_tile * kTileOutputs;
  if constexpr (kOutput == MatmulOutput::kSwiglu) {
    PutGatedTile(args, first_output, 8 * warp, total[0], total[1]);
  } else {
    PutTile<kOutput>(args, first_output, 8 * warp, total[0]);
  }
}

}  // namespace baton::engine::cuda
