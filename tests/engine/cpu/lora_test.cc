// LoRA adapters in the CPU engine: each sequence has the answer of its own
// adapter, to the bit, whoever else is in the step. That the answer is right,
// golden_test shows.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "tests/engine/cpu/engine_fixture.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cpu {
namespace {

using scheduling::kNoAdapter;
using scheduling::PlannedSequence;
using scheduling::StepPlan;
using scheduling::StepResult;
using testing::HasSubstr;

// "wide": of all matrices; "narrow": of two, of another rank; "nothing": of
// all, and adds zero.
std::vector<AdapterSource> WriteAdapters(const std::string& root,
                                         const std::string& model) {
  const std::vector<std::pair<std::string, test::TinyAdapterOptions>> options =
      {{"wide", {.seed = 5, .rank = 21, .alpha = 30}},
       {"narrow",
        {.seed = 6, .rank = 3, .alpha = 3, .modules = {"q_proj", "v_proj"}}},
       {"nothing", {.seed = 7, .rank = 8, .strength = 0}}};
  std::vector<AdapterSource> sources;
  for (const auto& [name, each] : options) {
    const std::string dir = root + "/" + name;
    const absl::Status status = test::WriteTinyAdapter(dir, model, each);
    CHECK(status.ok()) << status;
    sources.push_back({name, dir});
  }
  return sources;
}

class LoraTest : public EngineFixture {
 protected:
  std::unique_ptr<Engine> MakeWithAdapters(int32_t num_threads = 2) {
    EngineOptions options;
    options.model_dir = dir();
    options.weights = dtypes().weights;
    options.kv_dtype = dtypes().kv;
    options.cpu_isa = isa();
    options.num_threads = num_threads;
    options.kv_memory_bytes = 4 << 20;
    options.adapters = WriteAdapters(scratch_.path(), dir());
    auto engine = CreateEngine(options);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  static std::vector<float> RunAlone(Engine& engine, int32_t adapter,
                                     const std::vector<TokenId>& tokens) {
    return RunWhole(engine, tokens, BlockRange(0, 8), adapter);
  }

  test::ScratchDir scratch_;
};

INSTANTIATE_TEST_SUITE_P(Models, LoraTest, EngineCases(), EngineCaseName);

TEST_P(LoraTest, AddsWhatItSays) {
  const auto engine = MakeWithAdapters();
  ASSERT_EQ(engine->adapters().size(), 3u);
  EXPECT_EQ(engine->adapters()[0].name, "wide");
  EXPECT_EQ(engine->adapters()[0].rank, 21);
  EXPECT_EQ(engine->adapters()[1].identity.size(), 32u);
  EXPECT_NE(engine->adapters()[0].identity, engine->adapters()[1].identity);
  const std::vector<TokenId> tokens = Prompt(37, 3);
  const std::vector<float> base = RunAlone(*engine, kNoAdapter, tokens);
  // As an engine without any.
  EXPECT_TRUE(SameBits(base, RunWhole(*Make(), tokens, BlockRange(0, 8))));
  const std::vector<float> wide = RunAlone(*engine, 0, tokens);
  const std::vector<float> narrow = RunAlone(*engine, 1, tokens);
  EXPECT_FALSE(SameBits(wide, base));
  EXPECT_FALSE(SameBits(narrow, base));
  EXPECT_FALSE(SameBits(narrow, wide));
  EXPECT_TRUE(SameBits(RunAlone(*engine, 2, tokens), base));
  EXPECT_EQ(engine->model_identity(), Make()->model_identity());
}

// Prompts, chunks and single tokens of all adapters and of none, in any order.
TEST_P(LoraTest, ABatchOfAllGivesTheSameLogits) {
  constexpr int kSequences = 12;
  std::vector<std::vector<float>> alone;
  for (const int32_t threads : {1, 2}) {
    const auto engine = MakeWithAdapters(threads);
    std::vector<std::vector<TokenId>> tokens;
    std::vector<std::vector<BlockId>> blocks;
    for (int i = 0; i < kSequences; ++i) {
      tokens.push_back(Prompt(2 + 7 * i, 40 + i));
      blocks.push_back(BlockRange(8 * i, 8));
    }
    const auto adapter_of = [](int i) { return i * 7 % 4 - 1; };
    if (alone.empty()) {
      for (int i = 0; i < kSequences; ++i) {
        alone.push_back(RunAlone(*engine, adapter_of(i), tokens[i]));
      }
    }
    StepPlan first, second;
    for (int i = 0; i < kSequences; ++i) {
      const auto size = static_cast<int32_t>(tokens[i].size());
      const int32_t cut = i % 3 == 0 ? 0 : i % 3 == 1 ? size / 2 : size - 1;
      if (cut > 0) {
        first.sequences.push_back(Part(i, tokens[i], 0, cut, blocks[i]));
        first.sequences.back().adapter = adapter_of(i);
      }
      second.sequences.push_back(Part(i, tokens[i], cut, size, blocks[i]));
      second.sequences.back().adapter = adapter_of(i);
    }
    EXPECT_TRUE(engine->Execute(first, NoHook).sampled.empty());
    const StepResult result = engine->Execute(second, NoHook);
    ASSERT_EQ(result.sampled.size(), static_cast<size_t>(kSequences));
    for (int i = 0; i < kSequences; ++i) {
      EXPECT_EQ(result.sampled[i].sequence, SequenceId(i));
      EXPECT_TRUE(SameBits(result.sampled[i].logits, alone[i]))
          << i << " on " << threads << " threads";
    }
  }
}

// What is asked besides goes to the sequence that asked.
TEST_P(LoraTest, ScoresTargetsInThePlansOrder) {
  const auto engine = MakeWithAdapters();
  const std::vector<TokenId> tokens = Prompt(20, 5);
  const std::vector<TokenId> targets = Prompt(20, 6);
  const auto score = [&](const std::vector<int32_t>& adapters) {
    StepPlan plan;
    std::vector<std::vector<BlockId>> blocks;
    for (size_t i = 0; i < adapters.size(); ++i) {
      blocks.push_back(BlockRange(static_cast<BlockId>(2 * i), 2));
    }
    for (size_t i = 0; i < adapters.size(); ++i) {
      PlannedSequence part = Part(i, tokens, 0, 20, blocks[i]);
      part.adapter = adapters[i];
      part.sample = i % 2 == 0;
      part.targets = targets;
      plan.sequences.push_back(part);
    }
    return engine->Execute(plan, NoHook);
  };
  const std::vector<int32_t> adapters = {2, 0, kNoAdapter, 1, 0};
  const StepResult all = score(adapters);
  ASSERT_EQ(all.target_logprobs.size(), adapters.size());
  ASSERT_EQ(all.sampled.size(), 3u);
  for (size_t i = 0; i < adapters.size(); ++i) {
    const StepResult one = score({adapters[i]});
    EXPECT_EQ(all.target_logprobs[i], one.target_logprobs[0]) << i;
    if (i % 2 == 0) {
      EXPECT_EQ(all.sampled[i / 2].logprob, one.sampled[0].logprob) << i;
    }
  }
}

// They come while steps run, and go; the answers are those of an engine that
// had them from the start, whatever the others' ranks are.
TEST_P(LoraTest, AdaptersComeAndGo) {
  const std::vector<TokenId> tokens = Prompt(20, 5);
  const auto run = [&](Engine* engine, const std::vector<int32_t>& adapters) {
    StepPlan plan;
    std::vector<std::vector<BlockId>> blocks;
    for (size_t i = 0; i < adapters.size(); ++i) {
      blocks.push_back(BlockRange(static_cast<BlockId>(2 * i), 2));
    }
    for (size_t i = 0; i < adapters.size(); ++i) {
      plan.sequences.push_back(Part(i, tokens, 0, 20, blocks[i]));
      plan.sequences.back().adapter = adapters[i];
    }
    std::vector<std::vector<float>> logits;
    for (const auto& token : engine->Execute(plan, NoHook).sampled) {
      logits.push_back(token.logits);
    }
    return logits;
  };
  // wide, narrow, nothing.
  const auto expected = run(MakeWithAdapters().get(), {0, 1, 2, kNoAdapter, 0});
  const std::vector<AdapterSource> sources =
      WriteAdapters(scratch_.path(), dir());
  const auto engine = Make();
  EXPECT_TRUE(engine->adapters().empty());
  const auto prepare = [&](const AdapterSource& source) {
    auto prepared = engine->PrepareAdapter(source);
    CHECK(prepared.ok()) << prepared.status();
    return *std::move(prepared);
  };
  EXPECT_EQ(engine->AddAdapter(prepare(sources[1])).value(), 0);
  EXPECT_EQ(engine->adapters()[0].name, "narrow");
  EXPECT_EQ(engine->adapters()[0].rank, 3);
  EXPECT_TRUE(SameBits(run(engine.get(), {0})[0], expected[1]));
  // Of a larger rank, made ready beside a step.
  std::unique_ptr<PreparedAdapter> wide;
  std::thread beside([&] { wide = prepare(sources[0]); });
  EXPECT_TRUE(SameBits(run(engine.get(), {0})[0], expected[1]));
  beside.join();
  EXPECT_EQ(engine->AddAdapter(std::move(wide)).value(), 1);
  EXPECT_EQ(engine->AddAdapter(prepare(sources[2])).value(), 2);
  auto all = run(engine.get(), {1, 0, 2, kNoAdapter, 1});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_TRUE(SameBits(all[i], expected[i])) << i;
  }
  // Its place is the next one's.
  engine->RemoveAdapter(0);
  EXPECT_EQ(engine->adapters().size(), 3u);
  EXPECT_TRUE(engine->adapters()[0].name.empty());
  EXPECT_TRUE(engine->adapters()[0].identity.empty());
  EXPECT_TRUE(SameBits(run(engine.get(), {1})[0], expected[0]));
  EXPECT_EQ(engine->AddAdapter(prepare(sources[0])).value(), 0);
  all = run(engine.get(), {0, 1});
  EXPECT_TRUE(SameBits(all[0], expected[0]));
  EXPECT_TRUE(SameBits(all[1], expected[0]));
  // One that is gone is none.
  engine->RemoveAdapter(0);
  EXPECT_DEATH(run(engine.get(), {0}), "adapter 0");
  // A broken one changes nothing.
  EXPECT_EQ(engine->PrepareAdapter({"gone", scratch_.path() + "/gone"})
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

TEST(LoraOptionsTest, AreChecked) {
  test::ScratchDir scratch;
  EngineOptions options;
  options.model_dir = EngineModelDir("llama");
  options.kv_memory_bytes = 1 << 20;
  const auto says = [&](std::vector<AdapterSource> adapters) {
    options.adapters = std::move(adapters);
    return CreateEngine(options).status();
  };
  const std::vector<AdapterSource> good =
      WriteAdapters(scratch.path(), options.model_dir);
  EXPECT_TRUE(says(good).ok());
  EXPECT_THAT(says({good[0], {"wide", good[1].dir}}).message(),
              HasSubstr("two are called \"wide\""));
  EXPECT_THAT(says({{"", good[0].dir}}).message(), HasSubstr("has no name"));
  const absl::Status missing = says({{"gone", scratch.path() + "/gone"}});
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("adapter gone: "));
  // Of another model.
  options.model_dir = EngineModelDir("qwen3");
  EXPECT_THAT(says(good).message(), HasSubstr("adapter wide: "));
  std::vector<AdapterSource> many;
  for (size_t i = 0; i <= kMaxAdapters; ++i) {
    many.push_back({absl::StrCat(i), good[0].dir});
  }
  EXPECT_THAT(says(many).message(), HasSubstr("257 are more than the 256"));
}

}  // namespace
}  // namespace baton::engine::cpu
