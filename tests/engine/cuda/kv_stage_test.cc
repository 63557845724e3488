// KV from one engine's device to another's, through staged blocks, which are
// the host's or the device's.
#include "engine/kv_stage.h"

#include <xxhash.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "engine/cuda/device_kv_stage.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

constexpr int32_t kStagedBlocks = 8;

// With KV in each dtype, and staged blocks in each memory; with pages that lie
// in a row copied by copy engines, or all of them by the kernel.
struct Variant {
  KvDtype dtype = KvDtype::kBf16;
  bool on_device = false;
  int32_t most_copy_runs = kMostCopyRuns;
};

class KvStageTest : public DeviceTest,
                    public testing::WithParamInterface<Variant> {
 protected:
  static EngineOptions Options() {
    EngineOptions options = OptionsFor(ModelDirOf("llama"));
    options.kv_dtype = KvDtypeName(GetParam().dtype);
    options.kv_staging_on_device = GetParam().on_device;
    return options;
  }
  std::unique_ptr<CudaEngine> Make(bool graphs = true) {
    EngineOptions options = Options();
    const auto plain = CudaEngine::Create(options, SmallPass());
    CHECK(plain.ok()) << plain.status();
    const KvLayout layout = (*plain)->kv_layout();
    CHECK(layout.dtype == GetParam().dtype);
    options.kv_staging_bytes = kStagedBlocks * layout.block_bytes() + 1;
    options.share_kv_memory = !GetParam().on_device;
    ForwardPassOptions pass = SmallPass();
    pass.use_graphs = graphs;
    pass.most_copy_runs = GetParam().most_copy_runs;
    auto engine = CudaEngine::Create(options, pass);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // Page of a staged block.
  std::vector<std::byte> Staged(CudaEngine& engine, int32_t layer,
                                BlockId staged) {
    return ReadStaged(engine.kv_stage()->staged(), layer, staged);
  }

  static std::vector<std::byte> OnDevice(CudaEngine& engine, int32_t layer,
                                         BlockId block) {
    const KvLayout& layout = engine.kv_layout();
    std::vector<std::byte> all(layout.block_bytes());
    engine.kv_stage()->copy().ToHost({block}, absl::MakeSpan(all));
    const auto page = all.begin() + layer * layout.page_bytes();
    return {page, page + layout.page_bytes()};
  }

  static void Await(KvStage& stage, KvStage::Ticket ticket) {
    while (!stage.Done(ticket)) {
    }
  }

  static StepPlan PlanOf(const scheduling::PlannedSequence& part) {
    StepPlan plan;
    plan.sequences = {part};
    return plan;
  }
};

std::string NameOf(const testing::TestParamInfo<Variant>& param) {
  return std::string(KvDtypeName(param.param.dtype)) +
         (param.param.on_device             ? "_on_device"
          : param.param.most_copy_runs == 0 ? "_by_kernel"
                                            : "");
}

constexpr Variant kOnDevice[] = {{KvDtype::kBf16, true},
                                 {KvDtype::kInt8, true}};
INSTANTIATE_TEST_SUITE_P(OnHost, KvStageTest,
                         testing::Values(Variant{KvDtype::kBf16, false},
                                         Variant{KvDtype::kBf16, false, 0},
                                         Variant{KvDtype::kInt8, false, 0},
                                         Variant{KvDtype::kInt8, false}),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OnDevice, KvStageTest, testing::ValuesIn(kOnDevice),
                         NameOf);

class KvStageOnDeviceTest : public KvStageTest {};
INSTANTIATE_TEST_SUITE_P(OnDevice, KvStageOnDeviceTest,
                         testing::ValuesIn(kOnDevice), NameOf);

TEST_P(KvStageTest, SaysWhereStagedBlocksLie) {
  const auto engine = Make();
  const StagedMemory& staged = engine->kv_stage()->staged();
  EXPECT_EQ(staged.layout.num_blocks, kStagedBlocks);
  EXPECT_EQ(staged.layout.block_bytes(), engine->kv_layout().block_bytes());
  EXPECT_GE(static_cast<int64_t>(staged.memory.size()),
            staged.layout.total_bytes());
  EXPECT_EQ(staged.on_device, GetParam().on_device);
  EXPECT_EQ(staged.descriptor >= 0, !GetParam().on_device);
  EXPECT_EQ(staged.spare.size(), GetParam().on_device ? 1u << 20 : 0u);
}

TEST_P(KvStageTest, IsNoLargerThanKvAndNoSmallerThanABlock) {
  EngineOptions options = Options();
  options.kv_staging_bytes = int64_t{1} << 40;
  const auto engine = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->kv_stage()->staged().layout.num_blocks,
            (*engine)->kv_layout().num_blocks);
  EXPECT_EQ((*engine)->kv_stage()->staged().descriptor, -1);  // not asked for
  options.kv_staging_bytes = 10;
  const auto none = CudaEngine::Create(options, SmallPass());
  EXPECT_EQ(none.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(none.status().message(), testing::HasSubstr("kv_staging_bytes"));
  options.kv_staging_bytes = 0;
  const auto without = CudaEngine::Create(options, SmallPass());
  EXPECT_EQ((*without)->kv_stage(), nullptr);
}

TEST_P(KvStageTest, StepsCopyEachLayerBeforeItsHook) {
  for (const bool decode : {false, true}) {
    const auto engine = Make();
    const std::vector<TokenId> tokens = Prompt(49, 3);
    const std::vector<BlockId> blocks = {9, 2, 30, 4};
    const std::vector<StagedBlock> staged = {{9, 5}, {2, 0}, {30, 7}};
    // A step of one token that samples is one that there is a graph for.
    const int32_t first = decode ? 48 : 0;
    if (decode) engine->Execute(PlanOf(Part(1, tokens, 0, 48, blocks)), NoHook);
    engine->kv_stage()->WithStep(staged);
    std::vector<std::vector<std::byte>> seen;
    const auto hook = [&](int32_t layer) {
      for (const StagedBlock& b : staged) {
        seen.push_back(Staged(*engine, layer, b.staged));
      }
    };
    engine->Execute(PlanOf(Part(1, tokens, first, 49, blocks)), hook);
    ASSERT_EQ(seen.size(), staged.size() * engine->kv_layout().num_layers);
    size_t i = 0;
    for (int32_t layer = 0; layer < engine->kv_layout().num_layers; ++layer) {
      for (const StagedBlock& b : staged) {
        EXPECT_EQ(seen[i++], OnDevice(*engine, layer, b.block))
            << "layer " << layer << ", block " << b.block;
      }
    }
    // The next step copies nothing: what its blocks stand for is old.
    const auto before = Staged(*engine, 0, 5);
    engine->Execute(PlanOf(Part(1, Prompt(49, 8), 0, 49, blocks)),
                    [](int32_t) {});
    EXPECT_EQ(Staged(*engine, 0, 5), before);
    EXPECT_NE(OnDevice(*engine, 0, 9), before);
  }
}

// A step in many passes: blocks of its first pass, too.
TEST_P(KvStageTest, StepsInPassesCopyAllOfTheirBlocks) {
  EngineOptions options = Options();
  options.kv_staging_bytes = 1 << 20;
  ForwardPassOptions pass = SmallPass();
  pass.max_rows = 20;
  const auto engine = CudaEngine::Create(options, pass);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<TokenId> tokens = Prompt(64, 3);
  const std::vector<BlockId> blocks = BlockRange(4, 4);
  (*engine)->kv_stage()->WithStep({{4, 0}, {5, 1}, {6, 2}, {7, 3}});
  int calls = 0;
  (*engine)->Execute(PlanOf(Part(1, tokens, 0, 64, blocks)),
                     [&](int32_t layer) {
                       ++calls;
                       for (BlockId staged = 0; staged < 4; ++staged) {
                         EXPECT_EQ(Staged(**engine, layer, staged),
                                   OnDevice(**engine, layer, 4 + staged));
                       }
                     });
  EXPECT_EQ(calls, (*engine)->kv_layout().num_layers);
}

TEST_P(KvStageTest, HandedOverKvGivesTheSameLogits) {
  const auto from = Make();
  const auto to = Make();
  const KvLayout& layout = from->kv_layout();
  const std::vector<TokenId> tokens = Prompt(41, 9);
  const std::vector<BlockId> here = {7, 3, 12};
  const std::vector<BlockId> there = {9, 1, 5};
  const std::vector<float> expected =
      RunWhole(*from, tokens, BlockRange(20, 3));
  from->Execute(PlanOf(Part(1, tokens, 0, 40, here)), NoHook);

  KvStage& out = *from->kv_stage();
  KvStage& in = *to->kv_stage();
  std::atomic<int> wakes = 0;
  out.SetWake([&] { ++wakes; });
  // The cached part at once, the rest layer by layer.
  const KvStage::Ticket prefix =
      out.CopyOut(0, layout.num_layers, {StagedBlock{7, 6}});
  std::vector<KvStage::Ticket> layers;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    layers.push_back(
        out.CopyOut(layer, 1, {StagedBlock{3, 1}, StagedBlock{12, 4}}));
  }
  Await(out, layers.back());
  EXPECT_TRUE(out.Done(prefix));
  EXPECT_TRUE(out.Done(layers.front()));
  // Each time once it is done, so the last call may be on its way.
  EXPECT_GE(wakes.load(), layout.num_layers);
  out.SetWake(nullptr);
  // What a transport does.
  const BlockId sent[] = {6, 1, 4};
  const BlockId landed[] = {0, 7, 2};
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int i = 0; i < 3; ++i) {
      WriteStaged(in.staged(), layer, landed[i], Staged(*from, layer, sent[i]));
    }
  }
  KvStage::Ticket ticket;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    ticket = in.CopyIn(
        layer, 1, {StagedBlock{9, 0}, StagedBlock{1, 7}, StagedBlock{5, 2}});
  }
  Await(in, ticket);
  const StepResult result =
      to->Execute(PlanOf(Part(1, tokens, 40, 41, there)), NoHook);
  EXPECT_TRUE(SameBits(result.sampled[0].logits, expected));
}

// By the device, to the bit as the CPU would; also more than fit one kernel.
TEST_P(KvStageOnDeviceTest, HashesStagedPages) {
  const auto engine = Make();
  KvStage& stage = *engine->kv_stage();
  const StagedMemory& staged = stage.staged();
  const int64_t page_bytes = staged.layout.page_bytes();
  for (BlockId block = 0; block < kStagedBlocks; ++block) {
    std::vector<std::byte> page(page_bytes);
    for (int64_t i = 0; i < page_bytes; ++i) {
      page[i] = static_cast<std::byte>((block + 3) * i + i / 251);
    }
    WriteStaged(staged, 1, block, page);
  }
  const auto expected = [&](const std::vector<std::byte>& page, uint64_t seed) {
    return XXH3_64bits_withSeed(page.data(), page.size(), seed);
  };
  const auto run = [&](BlockId first, int32_t count) {
    return absl::Span<const std::byte>(staged.memory)
        .subspan(staged.layout.PageOffset(1, first), count * page_bytes);
  };
  constexpr uint64_t kSeed = uint64_t{1} << 32;
  const auto hashes =
      stage.HashPages({run(5, 2), run(0, 1)}, page_bytes, kSeed);
  ASSERT_EQ(hashes.size(), 3u);
  EXPECT_EQ(hashes[0], expected(Staged(*engine, 1, 5), kSeed));
  EXPECT_EQ(hashes[1], expected(Staged(*engine, 1, 6), kSeed + 1));
  EXPECT_EQ(hashes[2], expected(Staged(*engine, 1, 0), kSeed + 2));
  // A page of small pieces, from the last to the first, many times over.
  std::vector<absl::Span<const std::byte>> pieces;
  std::vector<std::byte> page;
  for (int64_t at = page_bytes; at > 0; at -= 64) {
    pieces.push_back(run(3, 1).subspan(at - 64, 64));
  }
  const std::vector<std::byte> source = Staged(*engine, 1, 3);
  for (int64_t at = page_bytes; at > 0; at -= 64) {
    page.insert(page.end(), source.begin() + at - 64, source.begin() + at);
  }
  const auto pages =
      static_cast<int64_t>(PageHashes::kMaxRuns / pieces.size() + 3);
  std::vector<absl::Span<const std::byte>> runs;
  for (int64_t i = 0; i < pages; ++i) {
    runs.insert(runs.end(), pieces.begin(), pieces.end());
  }
  const auto many = stage.HashPages(runs, page_bytes, 7);
  ASSERT_EQ(static_cast<int64_t>(many.size()), pages);
  for (int64_t i = 0; i < pages; ++i) {
    ASSERT_EQ(many[i], expected(page, 7 + i)) << i;
  }
}

// They are taken from what a share of the memory is of.
TEST_P(KvStageOnDeviceTest, LeaveRoomForEachOther) {
  EngineOptions options = Options();
  options.kv_memory_share = 1;
  options.kv_staging_bytes = int64_t{1} << 40;
  ForwardPassOptions pass = SmallPass();
  if (emulated()) pass.spare_bytes = int64_t{256} << 20;
  const auto engine = CudaEngine::Create(options, pass);
  ASSERT_TRUE(engine.ok()) << engine.status();
  const int32_t blocks = (*engine)->kv_layout().num_blocks;
  EXPECT_GT(blocks, 1000);
  EXPECT_EQ((*engine)->kv_stage()->staged().layout.num_blocks, blocks);
}

// Their lists are written over when they are read, and not before.
TEST_P(KvStageTest, ManyCopiesOneAfterAnother) {
  const auto engine = Make();
  KvStage& stage = *engine->kv_stage();
  engine->Execute(PlanOf(Part(1, Prompt(120, 4), 0, 120, BlockRange(3, 8))),
                  NoHook);
  const int32_t layers = engine->kv_layout().num_layers;
  for (int32_t round = 0; round < 40; ++round) {
    // Two under way, of other blocks and sizes each time.
    const int32_t layer = round % layers;
    const int32_t first = 1 + round % 5;
    std::vector<StagedBlock> one, other;
    for (BlockId i = 0; i < kStagedBlocks; ++i) {
      const StagedBlock b = {3 + (i + round) % 8, i};
      (i < first ? one : other).push_back(b);
    }
    stage.CopyOut(layer, 1, one);
    const KvStage::Ticket last = stage.CopyOut(layer, 1, other);
    Await(stage, last);
    for (const auto* blocks : {&one, &other}) {
      for (const StagedBlock& b : *blocks) {
        ASSERT_EQ(Staged(*engine, layer, b.staged),
                  OnDevice(*engine, layer, b.block))
            << "round " << round << ", staged block " << b.staged;
      }
    }
  }
}

// What was asked for before a step is there when its hooks are called.
TEST_P(KvStageTest, EarlierCopiesAreDoneBeforeHooks) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(33, 9);
  engine->Execute(PlanOf(Part(1, tokens, 0, 16, {8, 1, 2})), NoHook);
  const KvStage::Ticket ticket = engine->kv_stage()->CopyOut(
      0, engine->kv_layout().num_layers, {StagedBlock{8, 3}});
  bool checked = false;
  engine->kv_stage()->WithStep({{1, 0}});
  engine->Execute(PlanOf(Part(1, tokens, 16, 33, {8, 1, 2})),
                  [&](int32_t layer) {
                    if (layer != 0) return;
                    checked = true;
                    EXPECT_EQ(Staged(*engine, 1, 3), OnDevice(*engine, 1, 8));
                  });
  EXPECT_TRUE(checked);
  Await(*engine->kv_stage(), ticket);
}

}  // namespace
}  // namespace baton::engine::cuda
