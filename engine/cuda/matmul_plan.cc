#include "common/log.h"
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

constexpr int32_t kEnoughFlowBlocks = 128;

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

// The same for kFlow, of which two blocks fit on a multiprocessor. What gates
// are joined with is in the same block then.
int32_t FlowBlocks(const MatmulArgs& args, MatmulOutput output) {
  const int32_t chunks = Chunks(args.w.padded_inputs);
  const auto of_outputs = static_cast<int32_t>(
      Pieces(args.w.output_tiles * kTileOutputs, kFlowOutputs));
  int32_t blocks = 1;
  if (output == MatmulOutput::kSwiglu) return blocks;
  for (int32_t more = 2; more <= kFewInCluster; more *= 2) {
    if (blocks * of_outputs >= kEnoughFlowBlocks || more > chunks) break;
    if (WideChunks(chunks, more) <= kKeptChunks) blocks = more;
  }
  return blocks;
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
    case MatmulKernel::kFlow:
      CHECK_LE(args.rows, kFlowRows);
      CHECK_EQ(args.w.inputs, args.w.padded_inputs);
      plan.shape.x = plan.shape.cluster =
          static_cast<uint32_t>(FlowBlocks(args, output));
      plan.shape.y =
          Pieces(args.w.output_tiles * kTileOutputs, kFlowOutputs);
      plan.shape.threads = kFlowThreads;
      plan.shape.shared_bytes = FlowSharedBytes(args.w.format);
      break;
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

}  // namespace baton::engine::cuda
