// Prompts beside the running streams of a decode worker: how much of them a
// step computes.
#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduling/block_pool.h"
#include "scheduling/decode_scheduler.h"
#include "scheduling/sequence.h"

namespace baton::scheduling::mixed_steps_test {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// (sequence, tokens) of each entry.
std::vector<std::pair<uint64_t, int64_t>> Chunks(const StepPlan& plan) {
  std::vector<std::pair<uint64_t, int64_t>> out;
  for (const PlannedSequence& s : plan.sequences) {
    out.emplace_back(static_cast<uint64_t>(s.sequence),
                     static_cast<int64_t>(s.tokens.size()));
  }
  return out;
}

constexpr int32_t kBlockSize = 4;

std::unique_ptr<Sequence> MakePrompt(uint64_t id, int32_t prompt,
                                     const Urgency& urgency = {},
                                     int32_t max_output = 8) {
  std::vector<TokenId> tokens(static_cast<size_t>(prompt));
  for (int32_t i = 0; i < prompt; ++i) tokens[i] = i;
  StopParams stop;
  stop.max_output_tokens = max_output;
  return std::make_unique<Sequence>(SequenceId{id}, std::move(tokens), prompt,
                                    SamplingParams(), stop, 0, urgency);
}

// A decode worker: its scheduler, its sequences, and its steps.
class Decoder final {
 public:
  explicit Decoder(const DecodeSchedulerOptions& options)
      : scheduler_(options) {}

  void AddPrompt(uint64_t id, int32_t prompt, const Urgency& urgency = {},
                 int32_t max_output = 20000) {
    Add(MakePrompt(id, prompt, urgency, max_output));
  }
  void AddStream(uint64_t id, const Urgency& urgency = {}, int32_t prompt = 3,
                 double now = 0) {
    auto stream = MakePrompt(id, prompt, urgency, /*max_output=*/20000);
    stream->AdoptComputed(prompt);
    stream->AdoptSampled(7);
    Add(std::move(stream), now);
  }
  void Remove(uint64_t id) {
    scheduler_.Remove(SequenceId{id});
    sequences_.erase(SequenceId{id});
  }
  void RemoveFinished() {
    std::vector<uint64_t> done;
    for (const auto& [id, sequence] : sequences_) {
      if (sequence->finished()) done.push_back(static_cast<uint64_t>(id));
    }
    for (uint64_t id : done) Remove(id);
  }
  // Plans a step and does it.
  StepPlan Step(const StepOutlook& outlook = {}) {
    scheduler_.CheckInvariants();
    StepPlan plan = scheduler_.Plan(outlook);
    for (const PlannedSequence& s : plan.sequences) {
      Sequence& sequence = *sequences_.at(s.sequence);
      sequence.CommitComputed(static_cast<int32_t>(s.tokens.size()));
      if (s.sample) sequence.CommitSampled(7);
    }
    return plan;
  }
  const MixedStep& mixed() const { return scheduler_.mixed(); }
  const Sequence& at(uint64_t id) const {
    return *sequences_.at(SequenceId{id});
  }
  const auto& sequences() const { return sequences_; }

 private:
  void Add(std::unique_ptr<Sequence> sequence, double now = 0) {
    // Blocks do not matter here: as many as it takes.
    const int32_t blocks = sequence->MaxComputed() / kBlockSize + 1;
    sequence->blocks() = *pool_.Allocate(blocks);
    scheduler_.Add(sequence.get(), now);
    sequences_.emplace(sequence->id(), std::move(sequence));
  }

  BlockPool pool_{1 << 18};
  DecodeScheduler scheduler_;
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
};

// 9.9 ms, and 1 ms for each token.
constexpr StepCost kCost = {.fixed = 0.0099, .per_token = 0.001};
constexpr StepOutlook kOutlook = {.cost = kCost};

TEST(MixedStepsTest, ChunksShrinkWhileStreamsRunAndGrowWhenNoneDoes) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddStream(1);
  d.AddPrompt(2, 2000);
  // What the cost model makes of it is believed little by little: 90 ms hold
  // the stream and 79 tokens.
  for (int64_t tokens : {32, 64, 79, 79}) {
    EXPECT_THAT(Chunks(d.Step(kOutlook)),
                ElementsAre(Pair(1, 1), Pair(2, tokens)));
    EXPECT_EQ(d.mixed().prompt_tokens, tokens);
    EXPECT_TRUE(d.mixed().time_bound);
    EXPECT_DOUBLE_EQ(d.mixed().budget_seconds, 0.09);
    EXPECT_LE(d.mixed().predicted_seconds, 0.09);
  }
  EXPECT_GT(d.mixed().predicted_seconds, 0.0895);
  d.Remove(1);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(2, 512)));
  EXPECT_EQ(d.mixed().prompt_tokens, 0);
  d.AddStream(3);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(3, 1), Pair(2, 79)));
}

TEST(MixedStepsTest, TheTightestTargetOfTheStreamsCounts) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddPrompt(1, 100000);
  for (int i = 0; i < 3; ++i) d.Step(kOutlook);
  d.AddStream(2, {.itl_target_seconds = 0.2});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 170);
  d.AddStream(3);
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 80);
  d.AddStream(4, {.itl_target_seconds = 0.05});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 35);
  d.AddStream(5, {.itl_target_seconds = 0.06});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 35);
  // The prompt's own target begins to count when it is a stream.
  d.AddPrompt(6, 100000, {.priority = 1, .itl_target_seconds = 0.03});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 35);
}

TEST(MixedStepsTest, NobodyWaitsForABatchStream) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddPrompt(1, 100000);
  d.AddStream(2, {.request_class = RequestClass::kBatch});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 512);
  EXPECT_EQ(d.mixed().prompt_tokens, 511);
  EXPECT_EQ(d.mixed().budget_seconds, 0);
  EXPECT_FALSE(d.mixed().time_bound);
  d.AddStream(
      3, {.request_class = RequestClass::kBatch, .itl_target_seconds = 0.05});
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 35);
}

TEST(MixedStepsTest, WithoutTargetsOnlyTokensCount) {
  Decoder d({.token_budget = 64});
  d.AddStream(1);
  d.AddPrompt(2, 1000);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 1), Pair(2, 63)));
  EXPECT_FALSE(d.mixed().time_bound);
}

TEST(MixedStepsTest, APromptAlwaysGetsOn) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.001});
  d.AddStream(1);
  d.AddPrompt(2, 40);
  d.AddPrompt(3, 40);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 1), Pair(2, 16)));
  EXPECT_GT(d.mixed().predicted_seconds, d.mixed().budget_seconds);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 1), Pair(2, 16)));
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 1), Pair(2, 8)));
  EXPECT_THAT(Chunks(d.Step(kOutlook)),
              ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 16)));
}

TEST(MixedStepsTest, LittleIsComputedWhileCostsAreUnknown) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 10});
  d.AddStream(1);
  d.AddPrompt(2, 1000);
  d.AddPrompt(3, 1000);
  EXPECT_THAT(Chunks(d.Step()), ElementsAre(Pair(1, 1), Pair(2, 16)));
  EXPECT_TRUE(d.mixed().time_bound);
  EXPECT_EQ(d.mixed().predicted_seconds, 0);
}

TEST(MixedStepsTest, AStreamThatIsComingFindsAShortStep) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddPrompt(1, 100000);
  EXPECT_EQ(d.Step(kOutlook).NumTokens(), 512);
  const auto coming = MakePrompt(2, 8);
  const auto urgent = MakePrompt(3, 8, {.itl_target_seconds = 0.05});
  const auto batch = MakePrompt(4, 8, {.request_class = RequestClass::kBatch});
  const auto step_before = [&](std::vector<const Sequence*> sequences) {
    return d.Step({.cost = kCost, .coming = sequences}).NumTokens();
  };
  EXPECT_EQ(step_before({coming.get()}), 80);
  EXPECT_EQ(d.mixed().prompt_tokens, 0);  // beside nobody
  EXPECT_EQ(step_before({coming.get(), urgent.get()}), 35);
  EXPECT_EQ(step_before({batch.get()}), 512);
  EXPECT_EQ(step_before({}), 512);
  // Whoever may wait least decides, there or not.
  d.AddStream(5, {.request_class = RequestClass::kBatch});
  EXPECT_EQ(step_before({}), 512);
  EXPECT_EQ(step_before({urgent.get()}), 35);
  d.AddStream(6, {.itl_target_seconds = 0.04});
  EXPECT_EQ(step_before({urgent.get()}), 26);
}

TEST(MixedStepsTest, AStreamThatIsBehindCatchesUp) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddPrompt(1, 100000);
  for (int i = 0; i < 3; ++i) d.Step(kOutlook);
  const auto step_at = [&](double now) {
    return d.Step({.now = now, .cost = kCost}).NumTokens();
  };
  // It waited 40 ms for the end of a step: 55 of 95 are left for its first
  // token.
  d.AddStream(2, {}, 3, /*now=*/10);
  EXPECT_EQ(step_at(10.04), 45);
  EXPECT_EQ(step_at(10.12), 60);  // 25 behind
  EXPECT_EQ(step_at(10.19), 80);  // as it should be
  // Further behind than it can catch up soon: prompts get at least 16 tokens.
  EXPECT_EQ(step_at(10.45), 17);
  // Its mixed steps are measured by the time that they have without it.
  EXPECT_DOUBLE_EQ(d.mixed().budget_seconds, 0.09);
  // Lost: the others do not pay for it, not even when it comes nearer again.
  EXPECT_EQ(step_at(12), 80);
  for (int i = 1; i < 100; ++i) EXPECT_EQ(step_at(12 + 0.09 * i), 80);
  // Only for what is new.
  EXPECT_EQ(step_at(12 + 0.09 * 99 + 0.645), 30);  // 55 ms
}

TEST(MixedStepsTest, APromptThatWasComputedHereIsBehindFromItsFirstTokenOn) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  const auto step_at = [&](double now) {
    return d.Step({.now = now, .cost = kCost}).NumTokens();
  };
  d.AddPrompt(1, 500);
  EXPECT_EQ(step_at(1), 500);  // its first token comes at 2
  EXPECT_EQ(step_at(2), 1);
  d.AddPrompt(2, 100000);
  EXPECT_EQ(step_at(2.13), 50);  // 35 ms behind 95
}

TEST(MixedStepsTest, AloneAShortPromptDoesNotWaitForALongOne) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.1});
  d.AddPrompt(1, 30);
  d.AddPrompt(2, 400);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 30)));
  // Now it is a stream, which bounds the time of the step.
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(1, 1), Pair(2, 60)));
  d.Remove(1);
  d.AddPrompt(3, 20);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(2, 340)));
  d.Remove(2);
  d.AddPrompt(4, 15);
  EXPECT_THAT(Chunks(d.Step(kOutlook)), ElementsAre(Pair(3, 20), Pair(4, 15)));
}

TEST(MixedStepsTest, SeveralPromptsShareAStep) {
  Decoder d({.token_budget = 512, .itl_target_seconds = 0.2});
  d.AddPrompt(9, 512);
  d.Step(kOutlook);  // as much was seen before
  d.Remove(9);
  d.AddStream(1);
  d.AddPrompt(2, 50, {.request_class = RequestClass::kBatch});
  d.AddPrompt(3, 100);
  d.AddPrompt(4, 100);
  EXPECT_THAT(Chunks(d.Step(kOutlook)),
              ElementsAre(Pair(1, 1), Pair(3, 100), Pair(4, 69)));
  EXPECT_THAT(Chunks(d.Step(kOutlook)),
              ElementsAre(Pair(1, 1), Pair(3, 1), Pair(4, 31), Pair(2, 50)));
  EXPECT_FALSE(d.mixed().time_bound);
}

TEST(MixedStepsTest, ManyStreamsLeaveRoomForAPrompt) {
  Decoder d({.token_budget = 4});
  for (uint64_t id = 0; id < 6; ++id) d.AddStream(id);
  EXPECT_EQ(d.Step().sequences.size(), 4u);
  d.AddPrompt(9, 21);
  int steps = 0;
  while (d.at(9).num_output() == 0 && ++steps < 100) {
    EXPECT_LE(d.Step().NumTokens(), 4);
  }
  EXPECT_LE(steps, 13);
  for (uint64_t id = 0; id < 6; ++id) EXPECT_GE(d.at(id).num_output(), 3);
}

// Random streams and prompts: the step keeps its two bounds, every stream gets
// its token, and every prompt becomes a stream.
TEST(MixedStepsTest, RandomLoadKeepsTheBounds) {
  int bound = 0;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto token_budget = static_cast<int32_t>(40 + random() % 400);
    Decoder d({.token_budget = token_budget,
               .itl_target_seconds = 0.02 * (random() % 8),
               .patience = static_cast<int32_t>(1 + random() % 8)});
    const StepCost cost = {.fixed = 0.005,
                           .per_token = 1e-5 * (1 + random() % 100),
                           .per_context_token = 1e-8 * (random() % 100),
                           .per_sequence = 1e-5 * (random() % 100),
                           .per_prompt_context_token = 1e-8 * (random() % 100)};
    uint64_t next = 0;
    int mixed_steps = 0;
    const auto draw_urgency = [&] {
      return Urgency{.request_class = random() % 3 == 0
                                          ? RequestClass::kBatch
                                          : RequestClass::kInteractive,
                     .priority = static_cast<int32_t>(random() % 3),
                     .ttft_target_seconds = 0.2 * (random() % 4),
                     .itl_target_seconds = 0.02 * (random() % 4)};
    };
    for (int step = 0; step < 600; ++step) {
      if (step < 400 && random() % 4 == 0) {
        d.AddPrompt(next++, static_cast<int32_t>(1 + random() % 300),
                    draw_urgency(), static_cast<int32_t>(1 + random() % 60));
      }
      std::set<SequenceId> streams;
      for (const auto& [id, sequence] : d.sequences()) {
        if (sequence->uncomputed() == 1) streams.insert(id);
      }
      const StepPlan plan = d.Step(
          {.now = 0.05 * step, .cost = random() % 9 == 0 ? StepCost() : cost});
      ASSERT_LE(plan.NumTokens(), token_budget);
      ASSERT_EQ(plan.sequences.empty(), d.sequences().empty());
      if (streams.size() + 16 <= static_cast<size_t>(token_budget)) {
        std::set<SequenceId> planned;
        for (const PlannedSequence& s : plan.sequences) {
          planned.insert(s.sequence);
        }
        ASSERT_TRUE(std::includes(planned.begin(), planned.end(),
                                  streams.begin(), streams.end()));
      }
      const MixedStep& mixed = d.mixed();
      mixed_steps += mixed.prompt_tokens > 0;
      bound += mixed.time_bound;
      if (mixed.prompt_tokens > 16 && mixed.budget_seconds > 0) {
        ASSERT_LE(cost.Seconds(ShapeOf(plan)), mixed.budget_seconds + 1e-12);
      }
      d.RemoveFinished();
    }
    EXPECT_GT(mixed_steps, 20);
    int left = 0;
    while (!d.sequences().empty() && ++left < 20000) {
      d.Step({.cost = cost});
      d.RemoveFinished();
    }
    EXPECT_TRUE(d.sequences().empty());
  }
  EXPECT_GT(bound, 200);
}

}  // namespace
}  // namespace baton::scheduling::mixed_steps_test
