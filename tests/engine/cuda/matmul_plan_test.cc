// Which kernel a product runs on, and with how many blocks and how much memory.
#include <gtest/gtest.h>

#include "engine/cuda/attention.h"
#include "engine/cuda/matmul.h"

namespace baton::engine::cuda {
namespace {

// Kernels that all devices have, and nothing else.
constexpr DeviceKernels kCommon = {};

MatmulArgs Product(int32_t outputs, int32_t inputs, int32_t rows) {
  MatmulArgs args;
  args.w.outputs = outputs;
  args.w.inputs = inputs;
  args.w.output_tiles = OutputTiles(outputs);
  args.w.padded_inputs = PaddedInputs(inputs);
  args.x_stride = args.w.padded_inputs;
  args.rows = rows;
  return args;
}

MatmulKernel KernelFor(int32_t outputs, int32_t inputs, int32_t rows) {
  return PlanMatmul(Product(outputs, inputs, rows), MatmulOutput::kStore,
                    kCommon)
      .kernel;
}

TEST(MatmulPlanTest, KernelByRows) {
  EXPECT_EQ(KernelFor(4096, 4096, 1), MatmulKernel::kStream8);
  EXPECT_EQ(KernelFor(4096, 4096, 8), MatmulKernel::kStream8);
  EXPECT_EQ(KernelFor(4096, 4096, 9), MatmulKernel::kStream16);
  EXPECT_EQ(KernelFor(4096, 4096, 16), MatmulKernel::kStream16);
  EXPECT_EQ(KernelFor(4096, 4096, 17), MatmulKernel::kTile64);
  EXPECT_EQ(KernelFor(4096, 4096, 64), MatmulKernel::kTile64);
  EXPECT_EQ(KernelFor(4096, 4096, 65), MatmulKernel::kTile128);
  // More blocks than a grid has in y.
  EXPECT_EQ(KernelFor(65535 * 64, 64, 17), MatmulKernel::kTile128);
}

// At most eight, of 512 inputs or more, as even as pairs of slices allow.
TEST(MatmulPlanTest, ChunksOfInputs) {
  EXPECT_EQ(ChunkSlices(64), 8);
  EXPECT_EQ(Chunks(64), 1);
  EXPECT_EQ(Chunks(512), 1);
  EXPECT_EQ(Chunks(576), 2);
  EXPECT_EQ(ChunkSlices(4096), 8);
  EXPECT_EQ(Chunks(4096), 8);
  EXPECT_EQ(ChunkSlices(4160), 10);
  EXPECT_EQ(Chunks(4160), 7);
  EXPECT_EQ(ChunkSlices(11008), 22);
  EXPECT_EQ(Chunks(11008), 8);
  EXPECT_EQ(ChunkSlices(14336), 28);
  EXPECT_EQ(Chunks(14336), 8);
  for (int32_t inputs = 64; inputs < 40000; inputs += 64) {
    const int32_t slices = ChunkSlices(inputs);
    ASSERT_EQ(slices % 2, 0) << inputs;
    ASSERT_GE(slices, kMinChunkSlices) << inputs;
    ASSERT_LE(Chunks(inputs), kMaxChunks) << inputs;
    ASSERT_GE(Chunks(inputs) * slices * kSliceInputs, inputs);
    ASSERT_LT((Chunks(inputs) - 1) * slices * kSliceInputs, inputs);
  }
}

TEST(MatmulPlanTest, ShapesCoverTheProduct) {
  const MatmulPlan stream =
      PlanMatmul(Product(4100, 4096, 3), MatmulOutput::kStore, kCommon);
  EXPECT_EQ(stream.shape.x, 257u);
  EXPECT_EQ(stream.shape.threads, 256u);
  // Eight chunks, four floats of each of 32 lanes.
  EXPECT_EQ(stream.shape.shared_bytes, 8 * 512);
  MatmulArgs gated = Product(2 * 14336, 4096, 12);
  const MatmulPlan pairs = PlanMatmul(gated, MatmulOutput::kSwiglu, kCommon);
  EXPECT_EQ(pairs.kernel, MatmulKernel::kStream16);
  EXPECT_EQ(pairs.shape.x, 896u);
  EXPECT_EQ(pairs.shape.shared_bytes, 8 * 2 * 2 * 512);
  const MatmulPlan tile =
      PlanMatmul(Product(4100, 4096, 2049), MatmulOutput::kAdd, kCommon);
  EXPECT_EQ(tile.shape.x, 17u);
  EXPECT_EQ(tile.shape.y, 33u);  // 257 tiles of 16
  EXPECT_EQ(tile.shape.threads, 256u);
  EXPECT_EQ(tile.shape.shared_bytes, 128 << 10);
}

// Weights lie in the block's memory as they are stored.
TEST(MatmulPlanTest, NarrowWeightsTakeLessOfABlocksMemory) {
  MatmulArgs args = Product(4096, 4096, 128);
  const float scales = 1.0f;
  args.w.scales = &scales;
  args.w.format = WeightFormat::kInt4;
  // Four stages of 8 tiles of 512 bytes and 16 grids, and 128 rows.
  EXPECT_EQ(PlanMatmul(args, MatmulOutput::kStore, kCommon).shape.shared_bytes,
            4 * (8 * (512 + 32) + 128 * 128));
  args.w.format = WeightFormat::kFp8;
  EXPECT_EQ(PlanMatmul(args, MatmulOutput::kStore, kCommon).shape.shared_bytes,
            4 * (8 * 1024 + 128 * 128));
}

TEST(MatmulPlanTest, StagedInputsAreForGroupsOfWarps) {
  MatmulArgs args = Product(4100, 4096, 2049);
  args.x_order = InputOrder::kStaged;
  MatmulPlan plan = PlanMatmul(args, MatmulOutput::kAdd, kCommon);
  EXPECT_EQ(plan.kernel, MatmulKernel::kGroup);
  // Pairs of blocks: nine times 256 rows, and 33 times 128 outputs.
  EXPECT_EQ(plan.shape.cluster, 2u);
  EXPECT_EQ(plan.shape.x, 2u * 9);
  EXPECT_EQ(plan.shape.y, 17u);
  EXPECT_EQ(plan.shape.threads, 384u);
  // Four stages of 256 rows and as many pairs of barriers, the sums of 128 x
  // 184 (of nine more times eight rows they are in registers), and what aligns
  // them.
  EXPECT_EQ(plan.shape.shared_bytes, 4 * ((32 << 10) + 16) + (93 << 10));
  EXPECT_LE(plan.shape.shared_bytes, 227 << 10);
  // 128 rows: with fewer of them, and with two sets of sums in registers.
  args.rows = 128;
  plan = PlanMatmul(args, MatmulOutput::kStore, kCommon);
  EXPECT_EQ(plan.shape.x, 2u);
  EXPECT_EQ(plan.shape.shared_bytes, 6 * ((16 << 10) + 16) + (65 << 10));
  const float scales = 1.0f;
  args.w.scales = &scales;
  args.w.format = WeightFormat::kInt4;
  args.rows = 2049;
  plan = PlanMatmul(args, MatmulOutput::kStore, kCommon);
  EXPECT_EQ(plan.shape.x, 2u * 17);
  EXPECT_EQ(plan.shape.shared_bytes, 6 * ((16 << 10) + 16) + (65 << 10));
}

// In which order products want their inputs is which kernels they can run on.
TEST(MatmulPlanTest, OrderOfInputsByRows) {
  DeviceKernels kernels;
  const auto staged = [&](int32_t rows,
                          WeightFormat format = WeightFormat::kBf16) {
    return OrderOfInputs(kernels, format, rows) == InputOrder::kStaged;
  };
  EXPECT_FALSE(staged(17));
  EXPECT_FALSE(staged(65));
  kernels.group = true;
  EXPECT_FALSE(staged(64));
  EXPECT_TRUE(staged(65));
  kernels.group = false;
  kernels.flow = true;
  EXPECT_FALSE(staged(16));
  EXPECT_TRUE(staged(17));
  EXPECT_TRUE(staged(64));
  EXPECT_FALSE(staged(65));
  EXPECT_TRUE(staged(17, WeightFormat::kFp8));
  EXPECT_FALSE(staged(32, WeightFormat::kInt4));
  EXPECT_TRUE(staged(33, WeightFormat::kInt4));
}

// As many blocks as 132 multiprocessors, of Llama-3-8B's matrices.
TEST(MatmulPlanTest, FlowHasABlockForEachMultiprocessor) {
  DeviceKernels kernels;
  kernels.group = kernels.flow = true;
  const auto plan = [&](int32_t outputs, int32_t inputs, MatmulOutput output) {
    MatmulArgs args = Product(outputs, inputs, 64);
    args.x_order = InputOrder::kStaged;
    return PlanMatmul(args, output, kernels);
  };
  const auto expect = [](const MatmulPlan& p, int32_t tiles, uint32_t blocks,
                         uint32_t x, uint32_t threads) {
    EXPECT_EQ(p.kernel, MatmulKernel::kFlow);
    EXPECT_EQ(p.block_tiles, tiles);
    EXPECT_EQ(p.shape.x * p.shape.y, blocks);
    EXPECT_EQ(p.shape.x, x);
    EXPECT_EQ(p.shape.cluster, x);
    EXPECT_EQ(p.shape.threads, threads);
    EXPECT_LE(p.shape.shared_bytes, 227 << 10);
  };
  // Gate and up: 1,792 tiles are 128 times 14.
  expect(plan(2 * 14336, 4096, MatmulOutput::kSwiglu), 14, 128, 1, 512);
  // Few outputs: clusters of four, each block with two of eight chunks.
  expect(plan(4096, 4096, MatmulOutput::kAdd), 8, 128, 4, 256);
  expect(plan(4096, 14336, MatmulOutput::kAdd), 8, 128, 4, 256);
  expect(plan(6144, 4096, MatmulOutput::kStore), 8, 192, 4, 256);
  // The head: four times 132, and none for a fifth time.
  expect(plan(128256, 4096, MatmulOutput::kStore), 16, 501, 1, 512);
  // Two blocks of a cluster fit on a multiprocessor, which gives each 1 KB
  // more.
  for (const WeightFormat format :
       {WeightFormat::kBf16, WeightFormat::kFp8, WeightFormat::kInt4}) {
    EXPECT_LE(2 * (FlowSharedBytes(format, kFlowFewWarps) + 1024), 228 << 10);
    EXPECT_LE(FlowSharedBytes(format, kFlowWarps), 227 << 10);
  }
  // One chunk: nothing to share out.
  EXPECT_EQ(plan(576, 192, MatmulOutput::kStore).shape.x, 1u);
  MatmulArgs more = Product(4096, 4096, 65);
  more.x_order = InputOrder::kStaged;
  EXPECT_EQ(PlanMatmul(more, MatmulOutput::kAdd, kernels).kernel,
            MatmulKernel::kGroup);
}

// Few outputs: inputs are shared out, until there are enough blocks.
TEST(MatmulPlanTest, WideBlocksShareInputsOut) {
  DeviceKernels kernels;
  kernels.wide = true;
  const auto plan = [&](int32_t outputs, int32_t inputs, int32_t rows) {
    return PlanMatmul(Product(outputs, inputs, rows), MatmulOutput::kStore,
                      kernels);
  };
  EXPECT_EQ(plan(4096, 4096, 16).kernel, MatmulKernel::kStream16);
  EXPECT_EQ(plan(4096, 4096, 65).kernel, MatmulKernel::kTile128);
  // Llama-3-8B's down: blocks of 128 outputs, 32 of them, two of eight chunks
  // each.
  MatmulPlan p = plan(4096, 14336, 64);
  EXPECT_EQ(p.kernel, MatmulKernel::kWide);
  EXPECT_EQ(p.warp_tiles, 1);
  EXPECT_EQ(p.shape.x, 4u);
  EXPECT_EQ(p.shape.cluster, 4u);
  EXPECT_EQ(p.shape.y, 32u);
  EXPECT_EQ(p.shape.threads, 256u);
  // Four stages of 64 rows of 128 bytes, and two times 128 x 64 sums: two
  // blocks fit on a multiprocessor.
  EXPECT_EQ(p.shape.shared_bytes, (4 * 8 + 2 * 32) << 10);
  // Q, K and V: 24 blocks of outputs, two chunks each.
  p = plan(6144, 4096, 17);
  EXPECT_EQ(p.warp_tiles, 2);
  EXPECT_EQ(p.shape.cluster, 4u);
  EXPECT_EQ(p.shape.y, 24u);
  EXPECT_EQ(p.shape.shared_bytes, (4 * 4 + 2 * 32) << 10);
  EXPECT_EQ(plan(6144, 4096, 64).shape.shared_bytes, (4 * 8 + 2 * 64) << 10);
  // Gate and up have enough outputs: a block has all chunks.
  p = plan(28672, 4096, 33);
  EXPECT_EQ(p.shape.x, 1u);
  EXPECT_EQ(p.shape.cluster, 1u);
  EXPECT_EQ(p.shape.y, 112u);
  EXPECT_EQ(p.shape.shared_bytes, (4 * 8 + 64) << 10);
  // No more blocks than chunks, and none that would keep too many.
  EXPECT_EQ(plan(256, 512, 20).shape.cluster, 1u);
  EXPECT_EQ(plan(256, 576, 20).shape.cluster, 2u);
  EXPECT_EQ(plan(16384, 4096, 20).shape.cluster, 4u);
  // SwiGLU has gate and up side by side: never half of them.
  EXPECT_EQ(PlanMatmul(Product(4096, 4096, 64), MatmulOutput::kSwiglu, kernels)
                .shape.cluster,
            8u);
}

TEST(MatmulPlanDeathTest, RefusesWhatItCannotRun) {
  MatmulArgs narrow = Product(64, 128, 1);
  narrow.x_stride = 64;
  EXPECT_DEATH(PlanMatmul(narrow, MatmulOutput::kStore, kCommon), "x_stride");
  EXPECT_DEATH(PlanMatmul(Product(16, 64, 1), MatmulOutput::kSwiglu, kCommon),
               "");
  EXPECT_DEATH(PlanMatmul(Product(16, 64, 9), MatmulOutput::kStore,
                          MatmulKernel::kStream8),
               "rows");
  MatmulArgs no_scales = Product(64, 128, 1);
  no_scales.w.format = WeightFormat::kInt8;
  EXPECT_DEATH(PlanMatmul(no_scales, MatmulOutput::kStore, kCommon), "scales");
  MatmulArgs staged = Product(64, 100, 1);
  staged.x_order = InputOrder::kStaged;
  EXPECT_DEATH(PlanMatmul(staged, MatmulOutput::kStore, kCommon),
               "padded_inputs");
  EXPECT_DEATH(PlanMatmul(staged, MatmulOutput::kStore, MatmulKernel::kTile64),
               "x_order");
}

TEST(AttentionPlanTest, SpansOfATokenFollowThePositionAlone) {
  EXPECT_EQ(SpansOf(0, 0), 1);
  EXPECT_EQ(SpansOf(255, 0), 1);
  EXPECT_EQ(SpansOf(256, 0), 2);
  EXPECT_EQ(SpansOf(8191, 0), 32);
  // 100 positions from 412 to 511 lie in one span, from 413 to 512 in two.
  EXPECT_EQ(SpansOf(511, 100), 1);
  EXPECT_EQ(SpansOf(512, 100), 2);
  EXPECT_EQ(FirstVisible(99, 100), 0);
  EXPECT_EQ(FirstVisible(100, 100), 1);
  EXPECT_EQ(FirstVisible(100, 0), 0);
}

TEST(AttentionPlanTest, Shapes) {
  AttentionArgs args;
  args.num_heads = 32;
  args.num_kv_heads = 8;
  args.head_dim = args.stored_head_dim = 128;
  args.num_tiles = 10;
  LaunchShape shape = AttentionShape(args);
  EXPECT_EQ(shape.x, 10u);
  EXPECT_EQ(shape.y, 8u);
  EXPECT_EQ(shape.threads, 128u);
  // Two stages of 64 keys and values, and the sums of 64 queries: two blocks
  // fit on a multiprocessor of 227 KB.
  EXPECT_EQ(shape.shared_bytes, (64 + 32) << 10);
  args.max_spans = 7;
  shape = AttentionShape(args);
  EXPECT_EQ(shape.x, 7u);
  EXPECT_EQ(shape.z, 10u);
  // Four warps, and 16 queries' scores for 64 keys: three blocks fit.
  EXPECT_EQ(shape.threads, 128u);
  EXPECT_EQ(shape.shared_bytes, (64 + 4) << 10);
  // Half of it with KV in 8 bits, and the scales of 64 keys and values.
  for (const KvDtype dtype : {KvDtype::kInt8, KvDtype::kFp8}) {
    args.kv_dtype = dtype;
    EXPECT_EQ(AttentionShape(args).shared_bytes,
              ((32 + 4) << 10) + 2 * 2 * 64 * 4);
  }
  // With as many elements as two warps can share.
  args.stored_head_dim = 80;
  EXPECT_EQ(AttentionShape(args).threads, 64u);
}

TEST(AttentionPlanTest, GroupsOfWarpsHaveTilesOfTheirOwn) {
  AttentionArgs args;
  args.num_heads = 32;
  args.num_kv_heads = 8;
  args.head_dim = args.stored_head_dim = 128;
  args.num_tiles = 10;
  args.tile_queries = kGroupTileQueries;
  const LaunchShape shape = AttentionShape(args);
  EXPECT_EQ(shape.x, 8u);
  EXPECT_EQ(shape.y, 10u);
  EXPECT_EQ(shape.threads, 384u);
  // Four stages with two barriers each, the sums of 128 queries, and room to
  // align them: what a multiprocessor has.
  EXPECT_EQ(shape.shared_bytes,
            4 * ((32 << 10) + 512 + 16) + (64 << 10) + (1 << 10));
  EXPECT_LE(shape.shared_bytes, 227 << 10);
  // Whatever KV is stored in: there it is bfloat16.
  args.kv_dtype = KvDtype::kFp8;
  EXPECT_EQ(AttentionShape(args).shared_bytes, shape.shared_bytes);
  EXPECT_TRUE(IsGroupAttentionHeadDim(64));
  EXPECT_FALSE(IsGroupAttentionHeadDim(96));
}

TEST(AttentionPlanTest, RowsOfATile) {
  EXPECT_EQ(MaxTileRows(1), 64);
  EXPECT_EQ(MaxTileRows(4), 16);
  EXPECT_EQ(MaxTileRows(7), 9);
  EXPECT_EQ(MaxTileRows(64), 1);
  EXPECT_EQ(MaxTileRows(4, kGroupTileQueries), 32);
  EXPECT_EQ(MaxTileRows(48, kGroupTileQueries), 2);
}

}  // namespace
}  // namespace baton::engine::cuda
