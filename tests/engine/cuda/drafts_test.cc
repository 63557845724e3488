// Steps that check guesses at a sequence's next tokens, on a device: as graphs
// and without, on one device and on two.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cuda/cuda_engine.h"
#include "scheduling/token_mask.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/guessed_output.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#if defined(BATON_EMULATED_DEVICE)
#include "tests/support/emulated_device/emulated_runtime.h"
#endif

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::StepPlan;

class DraftsTest : public DeviceTest {
 protected:
  static GuessedOutput Drawn() {
    return {.sampling = {.temperature = 0.9f, .seed = 5}};
  }
};

class DraftsOfModelsTest : public DraftsTest,
                           public testing::WithParamInterface<std::string> {};

INSTANTIATE_TEST_SUITE_P(Models, DraftsOfModelsTest,
                         testing::ValuesIn(ModelNames()),
                         [](const auto& info) { return info.param; });

TEST_P(DraftsOfModelsTest, StepsThatCheckThemGiveWhatSingleStepsGive) {
  const auto engine = MakeCuda(OptionsFor(ModelDirOf(GetParam())));
  ExpectGuessesChangeNothing(*engine, {.sampling = {.temperature = 0.0f}});
  ExpectGuessesChangeNothing(*engine, Drawn());
}

// Over the end of a span, as they run apart, and of a window.
TEST_F(DraftsTest, BehindLongPrompts) {
  for (const char* model : {"mistral", "latent"}) {
    const auto engine = MakeCuda(OptionsFor(ModelDirOf(model)));
    GuessedOutput how = Drawn();
    how.prompt = kSpanPositions - 10;
    ExpectGuessesChangeNothing(*engine, how);
  }
}

TEST_F(DraftsTest, KeysAndValuesInBytes) {
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.kv_dtype = "int8";
  ExpectGuessesChangeNothing(*MakeCuda(options), Drawn());
}

// Kernel by kernel; and where a sequence's guesses are in several passes, or
// rows are more than logits are made of at a time.
TEST_F(DraftsTest, HoweverStepsAreRun) {
  const EngineOptions options = OptionsFor(ModelDirOf("llama"));
  ForwardPassOptions pass = SmallPass();
  pass.use_graphs = false;
  ExpectGuessesChangeNothing(*MakeCuda(options, pass), Drawn());
  pass = SmallPass();
  pass.max_rows = 4;
  ExpectGuessesChangeNothing(*MakeCuda(options, pass), Drawn());
  pass = SmallPass();
  pass.logit_bytes = 1;
  ExpectGuessesChangeNothing(*MakeCuda(options, pass), Drawn());
  pass = SmallPass();
  pass.span_bytes = 1;
  ExpectGuessesChangeNothing(*MakeCuda(options, pass), Drawn());
}

// What the device draws with, and what the host has to draw.
TEST_F(DraftsTest, HoweverTokensAreDrawn) {
  const auto engine = MakeCuda(OptionsFor(ModelDirOf("llama")));
  GuessedOutput how = Drawn();
  how.sampling.top_k = 20;
  how.sampling.min_p = 0.01f;
  how.sampling.logit_bias = {{3, 4.0f}, {9, -100.0f}};
  ExpectGuessesChangeNothing(*engine, how);
  how = Drawn();
  how.sampling.top_p = 0.9f;
  std::vector<TokenId> allowed;
  for (TokenId token = 0; token < 200; token += 3) allowed.push_back(token);
  how.sampling.allowed = std::make_shared<scheduling::TokenMask>(
      engine->model().vocab_size, allowed);
  ExpectGuessesChangeNothing(*engine, how);
  how = Drawn();
  how.masks = true;
  ExpectGuessesChangeNothing(*engine, how);
  how.want_logits = true;
  ExpectGuessesChangeNothing(*engine, how);
}

TEST_F(DraftsTest, WithAdapters) {
  const test::ScratchDir scratch;
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  const std::string dir = absl::StrCat(scratch.path(), "/adapter");
  ASSERT_TRUE(
      test::WriteTinyAdapter(dir, options.model_dir, {.seed = 3, .rank = 3})
          .ok());
  options.adapters.push_back({"adapter", dir});
  GuessedOutput how = Drawn();
  how.adapter = 0;
  ExpectGuessesChangeNothing(*MakeCuda(options), how);
}

class SharedModelDraftsTest : public DraftsTest,
                              public testing::WithParamInterface<std::string> {
};

INSTANTIATE_TEST_SUITE_P(Models, SharedModelDraftsTest,
                         testing::Values("llama", "latent"),
                         [](const auto& info) { return info.param; });

TEST_P(SharedModelDraftsTest, OfTwoDevices) {
  if (!OpenDevice(1).ok()) GTEST_SKIP() << "there is one device";
  EngineOptions options = OptionsFor(ModelDirOf(GetParam()));
  options.tensor_parallel = 2;
  ExpectGuessesChangeNothing(*MakeCuda(options), Drawn());
}

// The part of a plan that runs the last token but `drafts` of some, and those.
class DraftsAndStepsAheadTest : public DraftsTest {
 protected:
  PlannedSequence Guessing(uint64_t id, int32_t drafts) const {
    const auto size = static_cast<int32_t>(tokens_.size());
    PlannedSequence s =
        Part(id, tokens_, size - 1 - drafts, size, blocks_[id - 1]);
    s.num_drafts = drafts;
    s.history = absl::MakeSpan(tokens_).first(size - drafts);
    s.sampling = &sampling_;
    s.want_logits = false;
    return s;
  }
  // What follows a step of these, without guesses.
  StepPlan Ahead(int32_t sequences) const {
    StepPlan plan;
    for (int32_t i = 0; i < sequences; ++i) {
      plan.sequences.push_back(Guessing(1 + i, 0));
      plan.sequences.back().follows = true;
      ++plan.sequences.back().first_position;
    }
    return plan;
  }
  // Runs a step of these; whether another ran ahead of what it gave.
  bool RunsAhead(CudaEngine& engine, const StepPlan& plan) const {
    const auto sequences = static_cast<int32_t>(plan.sequences.size());
    bool given = false;
    const auto result = engine.ExecuteBeside(
        plan, NoHook, [&] { given = engine.RunAhead(Ahead(sequences)); });
    EXPECT_EQ(result.sampled.size(), static_cast<size_t>(plan.NumTokens()));
    if (given) {
      EXPECT_EQ(engine.Await([] {}).sampled.size(), plan.sequences.size());
    }
    return given;
  }

  std::vector<TokenId> tokens_ = Prompt(30, 1);
  std::vector<BlockId> blocks_[2] = {BlockRange(0, 2), BlockRange(2, 2)};
  const scheduling::SamplingParams sampling_;
};

// Which of them come true is for the host to find out. Behind a step without
// any, which is not the first of its size, one does run ahead.
TEST_F(DraftsAndStepsAheadTest, NothingRunsAheadOfGuesses) {
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.decode_rows_at_start = 2;
  options.drafts_at_start = 3;
  for (const int32_t max_rows : {256, 2}) {
    ForwardPassOptions pass = SmallPass();
    pass.max_rows = max_rows;
    const auto engine = MakeCuda(options, pass);
    for (const int32_t sequences : {1, 2}) {
      for (const int32_t drafts : {3, 1, 0}) {
        StepPlan plan;
        for (int32_t i = 0; i < sequences; ++i) {
          plan.sequences.push_back(Guessing(1 + i, drafts));
        }
        EXPECT_EQ(RunsAhead(*engine, plan), drafts == 0) << drafts;
      }
    }
  }
}

#if defined(BATON_EMULATED_DEVICE)
// A step that checks guesses is one launch from the first on, where such steps
// were made ready for.
class GraphsOfDraftsTest : public DraftsAndStepsAheadTest {
 protected:
  void ExpectGraph(CudaEngine& engine, int32_t drafts, bool is_one) const {
    StepPlan plan;
    plan.sequences = {Guessing(1, drafts)};
    const emulated::LaunchCounts before = emulated::Launches();
    engine.Execute(plan, NoHook);
    const emulated::LaunchCounts after = emulated::Launches();
    EXPECT_EQ(after.graphs - before.graphs, is_one ? 1 : 0) << drafts;
    EXPECT_EQ(after.others == before.others, is_one) << drafts;
  }
};

TEST_F(GraphsOfDraftsTest, AreThereFromTheStart) {
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.decode_rows_at_start = 2;
  for (const int32_t at_start : {0, 16}) {
    options.drafts_at_start = at_start;
    const auto engine = MakeCuda(options);
    for (const int32_t drafts : {1, 3, 6, 16}) {
      ExpectGraph(*engine, drafts, at_start > 0);
    }
  }
}

// Tokens that share a block see a span more together than any of them.
TEST_F(GraphsOfDraftsTest, AreThereForAllThatTokensSeeTogether) {
  const test::ScratchDir scratch;
  test::TinyModelOptions model;
  model.architecture = "MistralForCausalLM";
  model.sliding_window = 1;
  ASSERT_TRUE(test::WriteTinyModel(scratch.path(), model).ok());
  EngineOptions options = OptionsFor(scratch.path());
  options.decode_rows_at_start = 1;
  options.drafts_at_start = 3;
  const auto engine = MakeCuda(options);
  // Up to the first position of the second span.
  tokens_ = Prompt(kSpanPositions + 1, 1);
  blocks_[0] = BlockRange(
      0, engine->kv_layout().BlocksFor(static_cast<int32_t>(tokens_.size())));
  for (const int32_t drafts : {0, 3, 2, 1}) {
    ExpectGraph(*engine, drafts, true);
  }
}
#endif

}  // namespace
}  // namespace baton::engine::cuda
