#include <algorithm>

#include "common/log.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/matmul_flow.h"
#include "engine/cuda/matmul_group.h"
#include "engine/cuda/matmul_wide.h"

namespace baton::engine::cuda {
namespace {

// Stages of the tiled kernels (matmul_tiled.cuh).
constexpr int32_t kStages = 4;

// Blocks of kWide that keep a device busy: with fewer, inputs are shared out.
// An H200 has 132 multiprocessors, and one block with two tiles a warp fits on
// each.
constexpr int32_t kEnoughWideBlocks = 96;

// An H100 and an H200 have so many. In tiles of weights: what activations of a
// slice take, and what a block begins and ends with, in tiles of a chunk.
constexpr int32_t kFlowMultiprocessors = 132;
constexpr int32_t kFlowRowTiles = 2;
constexpr int32_t kFlowEnds = 8;

constexpr int32_t kFewInCluster = 4;

uint32_t Pieces(int32_t n, int32_t size) {
  return static_cast<uint32_t>((n + size - 1) / size);
}

int32_t TilesPerBlock(MatmulOutput output) {
  return output == MatmulOutput::kSwiglu ? 2 : 1;
}

// A float per lane and element of each chunk's sums.
int64_t StreamSharedBytes(const DeviceMatrix& w, MatmulOutput output,
                          int32_t row_tiles) {
  return int64_t{Chunks(w.padded_inputs)} * TilesPerBlock(output) * row_tiles *
         32 * 4 * 4;
}

LaunchShape TiledShape(const MatmulArgs& args, int32_t outputs, int32_t rows,
                       uint32_t threads) {
  LaunchShape shape;
  shape.x = Pieces(args.rows, rows);
  shape.y = Pieces(args.w.output_tiles * kTileOutputs, outputs);
  shape.threads = threads;
  shape.shared_bytes =
      int64_t{kStages} * (outputs / kTileOutputs * SliceBytes(args.w.format) +
                          rows * kSliceInputs * 2);
  return shape;
}

int32_t WideRows(int32_t rows) {
  return rows <= kWideFewRows ? kWideFewRows : kWideRows;
}

// How many blocks share a product's inputs out, `most` at most.
int32_t WideBlocks(const MatmulArgs& args, int32_t warp_tiles, int32_t most) {
  const int32_t chunks = Chunks(args.w.padded_inputs);
  const auto of_outputs = static_cast<int32_t>(
      Pieces(args.w.output_tiles * kTileOutputs, WideOutputs(warp_tiles)));
  int32_t blocks = 1;
  for (int32_t more = 2; more <= most; more *= 2) {
    if (blocks * of_outputs >= kEnoughWideBlocks || more > chunks) break;
    if (WideChunks(chunks, more) <= kKeptChunks) blocks = more;
  }
  return blocks;
}

// How kFlow shares a product out: tiles of a block, and blocks that share
// inputs out.
struct FlowSplit {
  int32_t tiles = 0;
  int32_t blocks = 0;
};

// The one by which the last multiprocessor is done soonest, if all take the
// same time for a slice of a tile: those that have two blocks twice as long as
// those that have one. Clusters need room for two blocks on each, as there is
// for those with few warps: with one on each, Q, K and V of Llama-3-8B took 32
// us on an H200, and 20 with two.
FlowSplit FlowSplitOf(const MatmulArgs& args, MatmulOutput output) {
  const int32_t chunks = Chunks(args.w.padded_inputs);
  // What gates are joined with is in the same block.
  const int32_t most = output == MatmulOutput::kSwiglu ? 1 : kFewInCluster;
  FlowSplit best;
  int64_t least = 0;
  for (int32_t blocks = 1; blocks <= most; blocks *= 2) {
    const int32_t own = WideChunks(chunks, blocks);
    if (blocks > 1 && (blocks > chunks || own > kKeptChunks)) continue;
    const int32_t warps = blocks > 1 ? kFlowFewWarps : kFlowWarps;
    for (int32_t tiles = kFlowFewWarps; tiles <= warps; tiles += 2) {
      const int64_t turns = Pieces(
          blocks * static_cast<int32_t>(Pieces(args.w.output_tiles, tiles)),
          kFlowMultiprocessors);
      const int64_t time = turns * (own * (tiles + kFlowRowTiles) + kFlowEnds);
      if (best.tiles == 0 || time < least) {
        best = {tiles, blocks};
        least = time;
      }
    }
  }
  return best;
}

int32_t FlowWarpsFor(int32_t tiles) {
  return tiles <= kFlowFewWarps ? kFlowFewWarps : kFlowWarps;
}

// Clusters of eight leave multiprocessors idle, as they have to lie together:
// of an H100's 132 they are said to reach 120. Where outputs are so few, blocks
// have half of them, and clusters are of four; but for SwiGLU, which has gate
// and up side by side.
int32_t WideWarpTiles(const MatmulArgs& args, MatmulOutput output) {
  const bool halves =
      output != MatmulOutput::kSwiglu &&
      WideBlocks(args, kWideWarpTiles, kMaxCluster) > kFewInCluster;
  return halves ? 1 : kWideWarpTiles;
}

}  // namespace

MatmulPlan PlanMatmul(const MatmulArgs& args, MatmulOutput output,
                      MatmulKernel kernel) {
  CHECK_GT(args.rows, 0);
  CHECK_GT(args.w.output_tiles, 0);
  CHECK_GE(args.x_stride, args.w.padded_inputs);
  CHECK_EQ(args.x_stride % 8, 0);
  CHECK_EQ(args.w.output_tiles % TilesPerBlock(output), 0);
  CHECK_EQ(args.w.scales != nullptr, HasOutputScales(args.w.format));
  CHECK_EQ(kernel == MatmulKernel::kGroup || kernel == MatmulKernel::kFlow,
           args.x_order == InputOrder::kStaged);
  MatmulPlan plan;
  plan.kernel = kernel;
  switch (kernel) {
    case MatmulKernel::kStream8:
    case MatmulKernel::kStream16: {
      const int32_t row_tiles = kernel == MatmulKernel::kStream8 ? 1 : 2;
      CHECK_LE(args.rows, 8 * row_tiles);
      plan.shape.x = Pieces(args.w.output_tiles, TilesPerBlock(output));
      plan.shape.threads = kStreamThreads;
      plan.shape.shared_bytes = StreamSharedBytes(args.w, output, row_tiles);
      break;
    }
    case MatmulKernel::kTile64:
      plan.shape = TiledShape(args, 64, 64, 128);
      break;
    case MatmulKernel::kTile128:
      plan.shape = TiledShape(args, 128, 128, 256);
      break;
    case MatmulKernel::kWide: {
      const int32_t rows = WideRows(args.rows);
      plan.warp_tiles = WideWarpTiles(args, output);
      const int32_t blocks = WideBlocks(args, plan.warp_tiles,
                                        plan.warp_tiles == kWideWarpTiles
                                            ? static_cast<int32_t>(kMaxCluster)
                                            : kFewInCluster);
      CHECK_LE(args.rows, kWideRows);
      plan.shape.x = plan.shape.cluster = static_cast<uint32_t>(blocks);
      plan.shape.y = Pieces(args.w.output_tiles * kTileOutputs,
                            WideOutputs(plan.warp_tiles));
      plan.shape.threads = kWideThreads;
      plan.shape.shared_bytes = WideSharedBytes(
          rows, Chunks(args.w.padded_inputs), blocks, plan.warp_tiles);
      break;
    }
    case MatmulKernel::kGroup: {
      const int32_t rows = GroupRows(args.w.format, args.rows);
      CHECK_EQ(args.w.inputs, args.w.padded_inputs);
      plan.shape.cluster = kGroupCluster;
      plan.shape.x = kGroupCluster * Pieces(args.rows, rows);
      plan.shape.y = Pieces(args.w.output_tiles * kTileOutputs,
                            kGroupCluster * kGroupOutputs);
      plan.shape.threads = kGroupThreads;
      plan.shape.shared_bytes = GroupSharedBytes(rows);
      break;
    }
    case MatmulKernel::kFlow: {
      CHECK_LE(args.rows, kFlowRows);
      CHECK_EQ(args.w.inputs, args.w.padded_inputs);
      const FlowSplit split = FlowSplitOf(args, output);
      const int32_t warps = FlowWarpsFor(split.tiles);
      plan.block_tiles = split.tiles;
      plan.shape.x = plan.shape.cluster = static_cast<uint32_t>(split.blocks);
      plan.shape.y = Pieces(args.w.output_tiles, split.tiles);
      plan.shape.threads = static_cast<uint32_t>(32 * warps);
      plan.shape.shared_bytes = FlowSharedBytes(args.w.format, warps);
      break;
    }
  }
  CHECK_LE(plan.shape.y, 65535u);
  return plan;
}

MatmulPlan PlanMatmul(const MatmulArgs& args, MatmulOutput output,
                      const DeviceKernels& kernels) {
  if (args.x_order == InputOrder::kStaged) {
    return PlanMatmul(args, output,
                      kernels.flow && args.rows <= kFlowRows
                          ? MatmulKernel::kFlow
                          : MatmulKernel::kGroup);
  }
  MatmulKernel kernel = MatmulKernel::kTile128;
  if (args.rows <= 8) {
    kernel = MatmulKernel::kStream8;
  } else if (args.rows <= 16) {
    kernel = MatmulKernel::kStream16;
  } else if (args.rows < kLargeTileRows) {
    kernel = kernels.wide ? MatmulKernel::kWide : MatmulKernel::kTile64;
  }
  // More outputs than a grid has rows of the smaller tile.
  if (kernel == MatmulKernel::kTile64 && args.w.output_tiles / 4 >= 65535) {
    kernel = MatmulKernel::kTile128;
  }
  return PlanMatmul(args, output, kernel);
}

ExpertTiling TilingOf(int32_t turns, int32_t experts, WeightFormat format,
                      bool group) {
  CHECK_GT(experts, 0);
  const int32_t average = (turns + experts - 1) / experts;
  // An expert that has half again as many rows as the average should still be
  // read once by the kernels that are as fast as memory.
  if (average <= 5) return TilingOf(turns, experts, MatmulKernel::kStream8);
  if (average <= 10) return TilingOf(turns, experts, MatmulKernel::kStream16);
  if (average <= 48) return TilingOf(turns, experts, MatmulKernel::kTile64);
  if (!group) return TilingOf(turns, experts, MatmulKernel::kTile128);
  // Half of each expert's last tile is computed for nothing.
  constexpr int32_t kManyRows = 2 * kGroupRows;
  return TilingOf(turns, experts, MatmulKernel::kGroup,
                  average < kManyRows || HasSliceGrids(format) ? kGroupFewRows
                                                               : kGroupRows);
}

ExpertTiling TilingOf(int32_t turns, int32_t experts, MatmulKernel kernel,
                      int32_t group_rows) {
  CHECK_GT(turns, 0);
  CHECK_GT(experts, 0);
  ExpertTiling tiling;
  tiling.kernel = kernel;
  switch (kernel) {
    case MatmulKernel::kStream8:
      tiling.tile_rows = 8;
      break;
    case MatmulKernel::kStream16:
      tiling.tile_rows = 16;
      break;
    case MatmulKernel::kTile64:
      tiling.tile_rows = 64;
      break;
    case MatmulKernel::kTile128:
      tiling.tile_rows = 128;
      break;
    case MatmulKernel::kGroup:
      CHECK(group_rows == kGroupFewRows || group_rows == kGroupRows);
      tiling.tile_rows = group_rows;
      tiling.staged = true;
      break;
    case MatmulKernel::kWide:
    case MatmulKernel::kFlow:
      LOG(FATAL) << "no kernel for experts";
  }
  // Of n rows an expert has at most 1 + (n - 1) / tile_rows tiles.
  const int32_t read = std::min(turns, experts);
  tiling.num_tiles = read + (turns - read) / tiling.tile_rows;
  tiling.places = tiling.staged ? tiling.num_tiles * tiling.tile_rows : turns;
  return tiling;
}

int32_t MostPlaces(int32_t rows, int32_t per_token, int32_t experts,
                   bool group) {
  // A format with tiles of fewer rows has no more places.
  constexpr WeightFormat kFormat = WeightFormat::kBf16;
  int32_t most = 0;
  for (int32_t r = 1; r <= rows; ++r) {
    most =
        std::max(most, TilingOf(r * per_token, experts, kFormat, group).places);
  }
  return most;
}

MatmulPlan PlanExpertMatmul(const ExpertTiling& tiling,
                            const ExpertMatmulArgs& args, MatmulOutput output) {
  CHECK(output != MatmulOutput::kAdd);
  CHECK_EQ(args.num_tiles, tiling.num_tiles);
  CHECK_EQ(args.tile_rows, tiling.tile_rows);
  CHECK(tiling.staged ? args.x_rows == nullptr
                      : args.first.gated_order == InputOrder::kNatural);
  MatmulArgs of_tile = args.first;
  of_tile.rows = tiling.tile_rows;
  MatmulPlan plan = PlanMatmul(of_tile, output, tiling.kernel);
  const auto tiles = static_cast<uint32_t>(tiling.num_tiles);
  // Neighbours have the same rows where these are few, and the same weights
  // where they are many.
  if (plan.kernel == MatmulKernel::kStream8 ||
      plan.kernel == MatmulKernel::kStream16) {
    plan.shape.y = tiles;
    // Inputs of experts may be few: warps for their chunks alone, so that more
    // blocks are on a multiprocessor.
    const int32_t row_tiles = tiling.tile_rows / 8;
    plan.shape.threads = static_cast<uint32_t>(
        32 * std::max(Chunks(of_tile.w.padded_inputs), row_tiles));
  } else {
    // The blocks of a cluster have the same tile.
    plan.shape.x = tiles * plan.shape.cluster;
  }
  CHECK_LE(plan.shape.y, 65535u);
  return plan;
}

}  // namespace baton::engine::cuda
