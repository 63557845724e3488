// Steps that the device has before the host knows what those before them
// sampled: the same tokens.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cuda/cuda_engine.h"
#include "scheduling/block_pool.h"
#include "scheduling/sequence.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#if defined(BATON_EMULATED_DEVICE)
#include "tests/support/emulated_device/emulated_runtime.h"
#endif

namespace baton::engine::cuda {
namespace {

using scheduling::SampledToken;
using scheduling::SamplingParams;
using scheduling::Sequence;
using scheduling::StepPlan;
using scheduling::StepResult;
using scheduling::StopParams;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::Lt;
using ::testing::SizeIs;

struct Ask {
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  StopParams stop;
  int32_t adapter = scheduling::kNoAdapter;
  int32_t top_logprobs = 0;
};

// What came of the asks, and how.
struct Answers {
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<float>> logprobs;
  std::vector<std::vector<std::vector<scheduling::TokenLogprob>>> tops;
  int32_t ahead = 0;    // steps that ran ahead
  int32_t again = 0;    // tokens that were not drawn
  int32_t dropped = 0;  // rows whose sequence had ended
};

// A loop around an engine, as a decode worker has it, without a cluster.
class Loop final {
 public:
  Loop(CudaEngine& engine, const std::vector<Ask>& asks)
      : engine_(engine), pool_(engine.kv_layout().num_blocks) {
    for (const Ask& ask : asks) {
      const auto id = SequenceId{100 + sequences_.size()};
      auto sequence = std::make_unique<Sequence>(
          id, ask.prompt, static_cast<int32_t>(ask.prompt.size()), ask.sampling,
          ask.stop, ask.top_logprobs, scheduling::Urgency(),
          /*cache_salt=*/"", ask.adapter);
      const int32_t blocks =
          engine.kv_layout().BlocksFor(sequence->MaxComputed());
      sequence->blocks() = *pool_.Allocate(blocks);
      sequences_.push_back(std::move(sequence));
      answers_.tokens.emplace_back();
      answers_.logprobs.emplace_back();
      answers_.tops.emplace_back();
    }
  }

  Answers Run(bool run_ahead) {
    for (int turns = 0; !Finished(); ++turns) {
      CHECK_LT(turns, 1000);
      StepPlan plan;
      for (const auto& sequence : sequences_) {
        if (!sequence->finished()) sequence->AppendTo(&plan, 1 << 20);
      }
      given_ = false;
      Commit(plan, engine_.ExecuteBeside(plan, NoHook, [&] {
        if (run_ahead) PlanAhead(plan);
      }));
      while (given_) {
        given_ = false;
        const StepPlan ahead = std::exchange(ahead_, StepPlan());
        ++answers_.ahead;
        Commit(ahead, engine_.Await([&] { PlanAhead(ahead); }));
      }
    }
    return std::move(answers_);
  }

 private:
  bool Finished() const {
    return std::all_of(sequences_.begin(), sequences_.end(),
                       [](const auto& s) { return s->finished().has_value(); });
  }

  void PlanAhead(const StepPlan& running) {
    if (std::exchange(host_draws_, false)) return;
    StepPlan plan;
    for (const auto& planned : running.sequences) {
      const Sequence& sequence = Find(planned.sequence);
      if (sequence.finished()) continue;
      if (sequence.uncomputed() != 1 || !sequence.CanFollow()) return;
      if (!sequence.EndsNext()) sequence.AppendFollowing(&plan);
    }
    given_ = engine_.RunAhead(plan);
    if (given_) ahead_ = std::move(plan);
  }

  void Commit(const StepPlan& plan, const StepResult& result) {
    ASSERT_EQ(result.sampled.size(), plan.sequences.size());
    for (size_t i = 0; i < plan.sequences.size(); ++i) {
      const SampledToken& token = result.sampled[i];
      ASSERT_EQ(token.sequence, plan.sequences[i].sequence);
      Sequence& sequence = Find(token.sequence);
      if (sequence.finished() || host_draws_) {
        ++answers_.dropped;
        continue;
      }
      if (token.again) {
        ++answers_.again;
        host_draws_ = true;
        continue;
      }
      ASSERT_TRUE(token.ok);
      sequence.CommitComputed(
          static_cast<int32_t>(plan.sequences[i].tokens.size()));
      sequence.CommitSampled(token.token);
      const size_t place = static_cast<uint64_t>(sequence.id()) - 100;
      answers_.tokens[place].push_back(token.token);
      answers_.logprobs[place].push_back(token.logprob);
      answers_.tops[place].push_back(token.top);
    }
  }

  Sequence& Find(SequenceId id) {
    return *sequences_[static_cast<uint64_t>(id) - 100];
  }

  CudaEngine& engine_;
  scheduling::BlockPool pool_;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  Answers answers_;
  StepPlan ahead_;
  bool given_ = false;
  // The one sequence there is needs a step that nothing runs ahead of.
  bool host_draws_ = false;
};

SamplingParams Drawn(float temperature, uint64_t seed) {
  SamplingParams params;
  params.temperature = temperature;
  params.seed = seed;
  return params;
}

StopParams Most(int32_t tokens) {
  StopParams stop;
  stop.max_output_tokens = tokens;
  return stop;
}

// For models of so many tokens.
std::vector<Ask> AllKinds(int32_t vocab_size) {
  std::vector<Ask> asks = {
      {Prompt(5, 1), Drawn(0.0f, 0), Most(14)},
      {Prompt(14, 2), Drawn(1.0f, 7), Most(9)},  // over a block's end
      {Prompt(3, 3), Drawn(0.7f, 8), Most(14)},
      {Prompt(30, 4), Drawn(1.3f, 9), Most(12)},
      {Prompt(4, 5), Drawn(1.0f, 10), Most(14)},
  };
  asks[2].sampling.top_k = 5;
  asks[3].sampling.top_p = 0.8f;
  asks[3].sampling.min_p = 0.01f;
  asks[4].sampling.logit_bias = {{3, 4.0f}, {9, -100.0f}};
  asks.push_back({Prompt(6, 6), Drawn(1.0f, 11), Most(13)});
  asks[0].top_logprobs = 5;
  asks[3].top_logprobs = 20;
  asks[5].top_logprobs = 1;
  asks[5].sampling.top_k = 40;
  asks[5].sampling.allowed = std::make_shared<scheduling::TokenMask>(
      vocab_size, std::vector<TokenId>{2, 33, 64, 65, 101});
  return asks;
}

// The last token that did not come before.
TokenId LastNewToken(const std::vector<TokenId>& tokens) {
  auto last = tokens.begin();
  for (auto at = tokens.begin(); at != tokens.end(); ++at) {
    if (std::find(tokens.begin(), at, *at) == at) last = at;
  }
  return *last;
}

// Which model, and how many devices share it.
struct SharedModel {
  std::string model;
  int32_t ranks = 1;
};

class RunAheadTest : public DeviceTest,
                     public testing::WithParamInterface<SharedModel> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (!OpenDevice(ranks() - 1).ok()) GTEST_SKIP() << "there are too few";
    UseDevice(0);
  }

  int32_t ranks() const { return GetParam().ranks; }
  EngineOptions Options() const {
    EngineOptions options = OptionsFor(ModelDirOf(GetParam().model));
    options.tensor_parallel = ranks();
    return options;
  }
  static std::unique_ptr<CudaEngine> Make(const EngineOptions& options,
                                          const ForwardPassOptions& pass) {
    auto engine = CudaEngine::Create(options, pass);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }
};

const SharedModel kAdaptedModels[] = {
    {"llama"}, {"odd"}, {"mistral"}, {"llama", 2}, {"moe"}};

std::string NameOf(const testing::TestParamInfo<SharedModel>& info) {
  return absl::StrCat(info.param.model, "_", info.param.ranks);
}

INSTANTIATE_TEST_SUITE_P(Models, RunAheadTest,
                         testing::ValuesIn(kAdaptedModels), NameOf);
INSTANTIATE_TEST_SUITE_P(LatentModels, RunAheadTest,
                         testing::Values(SharedModel{"latent"},
                                         SharedModel{"latent", 2}),
                         NameOf);

class AdaptedRunAheadTest : public RunAheadTest {};

INSTANTIATE_TEST_SUITE_P(Models, AdaptedRunAheadTest,
                         testing::ValuesIn(kAdaptedModels), NameOf);

class OneDeviceRunAheadTest : public DeviceTest {};

TEST_P(RunAheadTest, TokensAreTheSame) {
  const auto engine = Make(Options(), SmallPass());
  ASSERT_TRUE(engine->runs_ahead());
  std::vector<Ask> asks = AllKinds(engine->model().vocab_size);
  const Answers plain = Loop(*engine, asks).Run(/*run_ahead=*/false);
  EXPECT_EQ(plain.ahead, 0);
  EXPECT_THAT(plain.tokens[5], Each(AnyOf(2, 33, 64, 65, 101)));
  // Graphs are there by now.
  const Answers ahead = Loop(*engine, asks).Run(/*run_ahead=*/true);
  EXPECT_THAT(ahead.ahead, Ge(8));
  EXPECT_EQ(ahead.dropped, 0);  // lengths are known before
  EXPECT_EQ(ahead.tokens, plain.tokens);
  EXPECT_EQ(ahead.logprobs, plain.logprobs);
  EXPECT_EQ(ahead.tops, plain.tops);
  EXPECT_THAT(ahead.tops[3], Each(SizeIs(20)));
  EXPECT_THAT(ahead.tops[4], Each(SizeIs(0)));
  EXPECT_EQ(ahead.tops[0].back()[0].token, ahead.tokens[0].back());  // greedy

  // Those that end with a token do so when a step has them already.
  for (const int i : {0, 1, 3, 4}) {
    asks[i].stop.stop_token_ids = {LastNewToken(plain.tokens[i])};
  }
  asks[2].stop.stop_token_ids = {plain.tokens[2][4], plain.tokens[2][9]};
  asks[2].stop.min_output_tokens = 6;
  const Answers stopped = Loop(*engine, asks).Run(/*run_ahead=*/false);
  size_t tokens = 0;
  size_t of_plain = 0;
  for (size_t i = 0; i < asks.size(); ++i) {
    tokens += stopped.tokens[i].size();
    of_plain += plain.tokens[i].size();
  }
  EXPECT_THAT(tokens, Lt(of_plain));
  const Answers stopped_ahead = Loop(*engine, asks).Run(/*run_ahead=*/true);
  EXPECT_THAT(stopped_ahead.ahead, Ge(6));
  EXPECT_THAT(stopped_ahead.dropped, Ge(1));
  EXPECT_EQ(stopped_ahead.tokens, stopped.tokens);
}

// A step that follows another has their adapters, too; its graph is another one
// than that of sequences without.
TEST_P(AdaptedRunAheadTest, SequencesKeepTheirAdapters) {
  const test::ScratchDir scratch;
  EngineOptions options = Options();
  for (const int32_t rank : {8, 3}) {
    const std::string dir = absl::StrCat(scratch.path(), "/", rank);
    ASSERT_TRUE(test::WriteTinyAdapter(
                    dir, options.model_dir,
                    {.seed = static_cast<uint64_t>(rank), .rank = rank})
                    .ok());
    options.adapters.push_back({absl::StrCat(rank), dir});
  }
  const auto engine = Make(options, SmallPass());
  std::vector<Ask> asks = {{Prompt(5, 1), Drawn(0.0f, 0), Most(14), 0},
                           {Prompt(5, 1), Drawn(0.0f, 0), Most(12), 1},
                           {Prompt(5, 1), Drawn(0.0f, 0), Most(9)},
                           {Prompt(8, 2), Drawn(1.0f, 7), Most(14), 1}};
  std::vector<std::vector<TokenId>> alone;
  for (const Ask& ask : asks) {
    alone.push_back(Loop(*engine, {ask}).Run(/*run_ahead=*/false).tokens[0]);
  }
  EXPECT_NE(alone[0], alone[1]);
  for (int i = 0; i < 2; ++i) {
    const Answers ahead = Loop(*engine, asks).Run(/*run_ahead=*/true);
    if (i > 0) {
      EXPECT_THAT(ahead.ahead, Ge(6));
    }
    EXPECT_EQ(ahead.tokens, alone);
  }
}

// No step is the first of its size: each but the first decode step is ahead.
TEST_P(RunAheadTest, GraphsThatAreThereFromTheStart) {
  const std::vector<Ask> asks = {{Prompt(5, 1), Drawn(0.0f, 0), Most(12)},
                                 {Prompt(9, 2), Drawn(1.0f, 7), Most(12)},
                                 {Prompt(30, 3), Drawn(0.7f, 8), Most(12)}};
  const auto as_they_come = Make(Options(), SmallPass());
  const Answers expected = Loop(*as_they_come, asks).Run(/*run_ahead=*/true);
  EXPECT_THAT(expected.ahead, Lt(10));

  EngineOptions options = Options();
  options.decode_rows_at_start = 3;
  const auto engine = Make(options, SmallPass());
  const Answers answers = Loop(*engine, asks).Run(/*run_ahead=*/true);
  EXPECT_EQ(answers.ahead, 10);  // 12 tokens, of the prompt and of that step
  EXPECT_EQ(answers.tokens, expected.tokens);
  EXPECT_EQ(answers.logprobs, expected.logprobs);

  // Where all memory is left to others they come as without.
  ForwardPassOptions pass = SmallPass();
  pass.spare_bytes = int64_t{1} << 40;
  const auto spared = Make(options, pass);
  EXPECT_EQ(Loop(*spared, asks).Run(/*run_ahead=*/true).ahead, expected.ahead);
}

#if defined(BATON_EMULATED_DEVICE)
// Whether it is found out at start or while it serves, on all devices that
// share the model or on some.
TEST_P(RunAheadTest, WithoutMemoryForGraphsStepsRunAllTheSame) {
  if (GetParam().model != "llama") GTEST_SKIP() << "one model is enough";
  const std::vector<Ask> asks = {{Prompt(5, 1), Drawn(0.0f, 0), Most(12)},
                                 {Prompt(14, 2), Drawn(1.0f, 7), Most(12)}};
  EngineOptions options = Options();
  const Answers expected =
      Loop(*Make(options, SmallPass()), asks).Run(/*run_ahead=*/false);
  for (const int32_t at_start : {0, 2}) {
    options.decode_rows_at_start = at_start;
    for (const int graphs : {0, 1, 3}) {
      emulated::SetGraphs(graphs);
      const auto engine = Make(options, SmallPass());
      for (int i = 0; i < 2; ++i) {
        const Answers answers = Loop(*engine, asks).Run(/*run_ahead=*/true);
        EXPECT_EQ(answers.tokens, expected.tokens) << graphs << " graphs";
        EXPECT_EQ(answers.logprobs, expected.logprobs) << graphs << " graphs";
        if (graphs == 0) {
          EXPECT_EQ(answers.ahead, 0);
        }
      }
      emulated::SetGraphs(-1);
    }
  }
}

// One of two devices is full: neither records.
TEST_F(OneDeviceRunAheadTest, ADeviceThatIsFullKeepsOthersFromGraphs) {
  EngineOptions options = OptionsFor(ModelDirOf("llama"));
  options.tensor_parallel = 2;
  const auto engine = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const std::vector<Ask> asks = {{Prompt(5, 1), Drawn(1.0f, 3), Most(6)}};
  const Answers expected = Loop(**engine, asks).Run(/*run_ahead=*/false);
  EXPECT_THAT(Loop(**engine, asks).Run(/*run_ahead=*/true).ahead, Ge(1));

  const auto other = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(other.ok()) << other.status();
  UseDevice(1);
  const int64_t rest = FreeDeviceBytes() - (32 << 20);
  UseDevice(0);
  emulated::TakeBytes(1, rest);
  const int64_t graphs = emulated::Launches().graphs;
  for (int i = 0; i < 2; ++i) {
    const Answers answers = Loop(**other, asks).Run(/*run_ahead=*/true);
    EXPECT_EQ(answers.tokens, expected.tokens);
    EXPECT_EQ(answers.ahead, 0);
  }
  EXPECT_EQ(emulated::Launches().graphs, graphs);
  emulated::TakeBytes(1, -rest);
}
#endif

TEST_F(OneDeviceRunAheadTest, WithoutAGraphNothingRunsAhead) {
  ForwardPassOptions options = SmallPass();
  options.use_graphs = false;
  const auto engine = MakeCuda(ModelDirOf("llama"), options);
  const std::vector<Ask> asks = {{Prompt(5, 1), Drawn(1.0f, 3), Most(6)}};
  EXPECT_EQ(Loop(*engine, asks).Run(/*run_ahead=*/true).ahead, 0);
  // Nor a step that has more than one pass.
  options = SmallPass();
  options.max_rows = 2;
  const auto small = MakeCuda(ModelDirOf("llama"), options);
  const std::vector<Ask> three(3, asks[0]);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Loop(*small, three).Run(/*run_ahead=*/true).ahead, 0);
  }
  EXPECT_THAT(Loop(*small, asks).Run(/*run_ahead=*/true).ahead, Ge(1));
}

// The device draws from its 1,024 likeliest tokens, and the host from all: its
// logits are gone when another step has begun.
TEST_F(OneDeviceRunAheadTest, WhatTheHostDrawsIsRunAgain) {
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/model";
  test::TinyModelOptions model;
  model.vocab_size = 3000;
  ASSERT_TRUE(test::WriteTinyModel(dir, model).ok());
  std::vector<Ask> asks = {{Prompt(5, 1), Drawn(4.0f, 3), Most(8)}};
  asks[0].sampling.top_k = 2000;
  EngineOptions options = OptionsFor(dir);
  const auto one = MakeCuda(dir, SmallPass());
  const Answers plain = Loop(*one, asks).Run(/*run_ahead=*/false);
  for (const int32_t ranks : {1, 2}) {
    if (!OpenDevice(ranks - 1).ok()) continue;
    options.tensor_parallel = ranks;
    const auto engine = CudaEngine::Create(options, SmallPass());
    ASSERT_TRUE(engine.ok()) << engine.status();
    Loop(**engine, asks).Run(/*run_ahead=*/false);  // graphs
    const Answers ahead = Loop(**engine, asks).Run(/*run_ahead=*/true);
    EXPECT_THAT(ahead.again, Ge(2)) << ranks;
    EXPECT_THAT(ahead.ahead, Ge(2)) << ranks;
    EXPECT_EQ(ahead.tokens, plain.tokens) << ranks;
  }
}

}  // namespace
}  // namespace baton::engine::cuda
