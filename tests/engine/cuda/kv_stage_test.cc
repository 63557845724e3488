// KV from one engine's device to another's, through staged blocks of the host.
#include "engine/kv_stage.h"

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

// With KV in each dtype.
class KvStageTest : public DeviceTest,
                    public testing::WithParamInterface<KvDtype> {
 protected:
  static EngineOptions Options() {
    EngineOptions options = OptionsFor(ModelDirOf("llama"));
    options.kv_dtype = KvDtypeName(GetParam());
    return options;
  }
  std::unique_ptr<CudaEngine> Make(bool graphs = true) {
    EngineOptions options = Options();
    const auto plain = CudaEngine::Create(options, SmallPass());
    CHECK(plain.ok()) << plain.status();
    const KvLayout layout = (*plain)->kv_layout();
    CHECK(layout.dtype == GetParam());
    options.kv_staging_bytes = kStagedBlocks * layout.block_bytes() + 1;
    options.share_kv_memory = true;
    ForwardPassOptions pass = SmallPass();
    pass.use_graphs = graphs;
    auto engine = CudaEngine::Create(options, pass);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // Page of a staged block.
  static std::vector<std::byte> Staged(CudaEngine& engine, int32_t layer,
                                       BlockId staged) {
    const StagedMemory& host = engine.kv_stage()->host();
    const auto page = host.memory.subspan(host.layout.PageOffset(layer, staged),
                                          host.layout.page_bytes());
    return {page.begin(), page.end()};
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

INSTANTIATE_TEST_SUITE_P(KvDtypes, KvStageTest,
                         testing::Values(KvDtype::kBf16, KvDtype::kInt8),
                         [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

TEST_P(KvStageTest, SaysWhereStagedBlocksLie) {
  const auto engine = Make();
  const StagedMemory& host = engine->kv_stage()->host();
  EXPECT_EQ(host.layout.num_blocks, kStagedBlocks);
  EXPECT_EQ(host.layout.block_bytes(), engine->kv_layout().block_bytes());
  EXPECT_GE(static_cast<int64_t>(host.memory.size()),
            host.layout.total_bytes());
  EXPECT_GE(host.descriptor, 0);
}

TEST_P(KvStageTest, IsNoLargerThanKvAndNoSmallerThanABlock) {
  EngineOptions options = Options();
  options.kv_staging_bytes = int64_t{1} << 40;
  const auto engine = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->kv_stage()->host().layout.num_blocks,
            (*engine)->kv_layout().num_blocks);
  EXPECT_EQ((*engine)->kv_stage()->host().descriptor, -1);  // not asked for
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
      out.ToHost(0, layout.num_layers, {StagedBlock{7, 6}});
  std::vector<KvStage::Ticket> layers;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    layers.push_back(
        out.ToHost(layer, 1, {StagedBlock{3, 1}, StagedBlock{12, 4}}));
  }
  Await(out, layers.back());
  EXPECT_TRUE(out.Done(prefix));
  EXPECT_TRUE(out.Done(layers.front()));
  // Each time once it is done, so the last call may be on its way.
  EXPECT_GE(wakes.load(), layout.num_layers);
  out.SetWake(nullptr);
  // What a transport does.
  const StagedMemory& source = out.host();
  const StagedMemory& target = in.host();
  const BlockId sent[] = {6, 1, 4};
  const BlockId landed[] = {0, 7, 2};
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (int i = 0; i < 3; ++i) {
      std::memcpy(
          target.memory.data() + target.layout.PageOffset(layer, landed[i]),
          source.memory.data() + source.layout.PageOffset(layer, sent[i]),
          layout.page_bytes());
    }
  }
  KvStage::Ticket ticket;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    ticket = in.ToDevice(
        layer, 1, {StagedBlock{9, 0}, StagedBlock{1, 7}, StagedBlock{5, 2}});
  }
  Await(in, ticket);
  const StepResult result =
      to->Execute(PlanOf(Part(1, tokens, 40, 41, there)), NoHook);
  EXPECT_TRUE(SameBits(result.sampled[0].logits, expected));
}

// What was asked for before a step is there when its hooks are called.
TEST_P(KvStageTest, EarlierCopiesAreDoneBeforeHooks) {
  const auto engine = Make();
  const std::vector<TokenId> tokens = Prompt(33, 9);
  engine->Execute(PlanOf(Part(1, tokens, 0, 16, {8, 1, 2})), NoHook);
  const KvStage::Ticket ticket = engine->kv_stage()->ToHost(
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
