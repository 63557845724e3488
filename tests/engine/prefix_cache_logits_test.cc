// The engine's numerics go by position: a sequence that begins in blocks which
// others filled gives bit for bit the logits of one that computed all itself.
#include <memory>
#include <string>
#include <vector>

#include "engine/engine_factory.h"
#include "gtest/gtest.h"
#include "scheduling/prefix_cache.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine {
namespace {

using scheduling::BlockPool;
using scheduling::PooledBlocks;
using scheduling::PrefixCache;
using scheduling::Sequence;
using scheduling::StepPlan;
using scheduling::StepResult;

constexpr int32_t kOutput = 8;

class PrefixCacheLogitsTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const std::string& dir = scratch_.path();
    ASSERT_TRUE(test::WriteTinyModel(dir).ok());
    EngineOptions options;
    options.model_dir = dir;
    options.kv_dtype = GetParam();
    options.kv_memory_bytes = 1 << 20;
    auto engine = CreateEngine(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // The logits of each output token; how much of the prompt was cached comes
  // back in `cached`.
  std::vector<std::vector<float>> Logits(const std::vector<TokenId>& prompt,
                                         PrefixCache* cache, BlockPool* pool,
                                         int32_t* cached) {
    scheduling::StopParams stop;
    stop.max_output_tokens = kOutput;
    const auto length = static_cast<int32_t>(prompt.size());
    Sequence sequence(SequenceId{1}, prompt, length,
                      scheduling::SamplingParams(), stop);
    PooledBlocks blocks = cache->Match(&sequence, length - 1);
    const int32_t needed =
        engine_->kv_layout().BlocksFor(sequence.MaxComputed());
    blocks.Append(*pool->Allocate(needed - blocks.size()));
    sequence.blocks() = std::move(blocks);
    *cached = sequence.cached();
    if (*cached > 0) sequence.AdoptComputed(*cached);
    std::vector<std::vector<float>> logits;
    while (!sequence.finished().has_value()) {
      StepPlan plan;
      sequence.AppendTo(&plan, /*max_tokens=*/24);
      plan.sequences[0].want_logits = true;
      const StepResult result = engine_->Execute(plan, [](int32_t) {});
      sequence.CommitComputed(
          static_cast<int32_t>(plan.sequences[0].tokens.size()));
      cache->Insert(&sequence);
      if (result.sampled.empty()) continue;
      logits.push_back(result.sampled[0].logits);
      sequence.CommitSampled(result.sampled[0].token);
    }
    return logits;
  }

  test::ScratchDir scratch_;
  std::unique_ptr<Engine> engine_;
};

TEST_P(PrefixCacheLogitsTest, AreThoseWithoutAHit) {
  const KvLayout& layout = engine_->kv_layout();
  BlockPool pool(layout.num_blocks);
  PrefixCache cache({.block_size = layout.block_size}, &pool);
  std::vector<TokenId> prompt;
  for (int i = 0; i < 100; ++i) prompt.push_back((i * 37 + 11) % 256);
  int32_t cached = 0;
  Logits(prompt, &cache, &pool, &cached);
  EXPECT_EQ(cached, 0);
  for (const int from : {100, 97, 96, 50, 16, 0}) {
    std::vector<TokenId> other = prompt;
    for (size_t i = static_cast<size_t>(from); i < other.size(); ++i) {
      other[i] = (other[i] + 100) % 256;
    }
    const auto warm = Logits(other, &cache, &pool, &cached);
    EXPECT_EQ(cached, from / layout.block_size * layout.block_size);
    BlockPool own_pool(layout.num_blocks);
    PrefixCache off({.enabled = false, .block_size = layout.block_size},
                    &own_pool);
    // In the same memory: it overwrites what the cache has.
    cache.Clear();
    const auto cold = Logits(other, &off, &own_pool, &cached);
    EXPECT_EQ(cached, 0);
    EXPECT_EQ(warm, cold) << "others from token " << from;
    Logits(prompt, &cache, &pool, &cached);
  }
}

INSTANTIATE_TEST_SUITE_P(KvDtypes, PrefixCacheLogitsTest,
                         testing::Values("bf16", "int8"), [](const auto& info) {
                           return std::string(info.param);
                         });

}  // namespace
}  // namespace baton::engine
