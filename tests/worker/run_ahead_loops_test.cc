// What a decode worker does beside the steps of a device, and before they are
// done: with an engine that moves the clock.
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/timed_worker.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using timed::kAhead;
using timed::kSampled;
using timed::Options;
using timed::TimedWorker;

TEST(RunAheadLoopsTest, WhatAStepGaveIsPublishedBesideADevicesNextOne) {
  for (const bool on_device : {false, true}) {
    TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                       on_device);
    worker.engine().refuses = true;
    v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
    spec.set_max_output_tokens(3);
    worker.SendLocal(spec);
    std::vector<uint32_t> told;
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(worker.Turn().size(), 1u);
      if (!on_device || i > 0) told.push_back(on_device ? i - 1 : i);
      EXPECT_EQ(worker.said().tokens, told) << on_device;
    }
    EXPECT_EQ(worker.said().finished, !on_device);
    // No step comes: nothing is waited for.
    worker.Turn();
    EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1, 2));
    EXPECT_TRUE(worker.said().finished);
  }
}

TEST(RunAheadLoopsTest, TheLastStepsTokensComeBeforeTheEnd) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
  spec.set_max_output_tokens(1);
  worker.SendLocal(spec);
  worker.Turn();
  EXPECT_FALSE(worker.said().finished);
  worker.LastTurn();
  EXPECT_THAT(worker.said().tokens, ElementsAre(0));
  EXPECT_TRUE(worker.said().finished);
}

TEST(RunAheadLoopsTest, StepsRunAheadOfWhatTheyFollow) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
  spec.set_max_output_tokens(6);
  worker.SendLocal(spec);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 5)));
  // Nothing runs ahead of a prompt's end, nor behind the last token.
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kSampled, 1)));
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(worker.engine().has_ahead());
    EXPECT_EQ(worker.TimeOfTurn(), absl::Milliseconds(9));
    EXPECT_THAT(worker.engine().step, ElementsAre(Pair(kAhead, 1)));
    // Those of the step before.
    EXPECT_EQ(worker.said().tokens.size(), 2u + i);
  }
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_THAT(worker.Turn(), IsEmpty());
  EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_TRUE(worker.said().finished);
  EXPECT_EQ(worker.metrics().steps->Value(), 6);
  EXPECT_EQ(worker.metrics().steps_ahead->Value(), 4);
  EXPECT_EQ(worker.metrics().ahead_tokens_dropped->Value(), 0);
}

TEST(RunAheadLoopsTest, WhoWaitsIsInTheNextStepThatIsPlanned) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  worker.SendLocal(TimedWorker::Spec(1, 5));
  worker.Turn();
  worker.Turn();
  ASSERT_TRUE(worker.engine().has_ahead());
  // The step that there is, and no other.
  worker.SendLocal(TimedWorker::Spec(2, 40));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kAhead, 1)));
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kSampled, 1), Pair(2, 40)));
  EXPECT_FALSE(worker.engine().has_ahead());  // of a prompt
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kSampled, 1), Pair(kSampled, 1)));
  ASSERT_TRUE(worker.engine().has_ahead());
  // Nor when it is seen before a step is given.
  worker.engine().while_running = [&] {
    worker.SendLocal(TimedWorker::Spec(3, 7));
    worker.engine().while_running = [] {};
  };
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kAhead, 1), Pair(kAhead, 1)));
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_THAT(worker.Turn(),
              ElementsAre(Pair(kSampled, 1), Pair(kSampled, 1), Pair(3, 7)));
}

TEST(RunAheadLoopsTest, WhatIsOverLeavesAStepAheadWithoutATrace) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  worker.SendLocal(TimedWorker::Spec(1, 5));
  v1::SequenceSpec stops = TimedWorker::Spec(2, 5);
  stops.add_stop_token_ids(kSampled);
  stops.set_min_output_tokens(2);
  worker.SendLocal(stops);
  worker.Turn();
  worker.Turn();
  // Its third token ends it, when the fourth is being computed.
  worker.Turn();
  ASSERT_TRUE(worker.engine().has_ahead());
  EXPECT_EQ(worker.metrics().running->Value(), 2);
  EXPECT_EQ(worker.Turn().size(), 2u);
  EXPECT_TRUE(worker.said().finished);
  EXPECT_EQ(worker.metrics().ahead_tokens_dropped->Value(), 1);
  EXPECT_EQ(worker.Turn().size(), 1u);
  // The other is given up, and the worker told to end.
  ASSERT_TRUE(worker.engine().has_ahead());
  worker.Cancel(1);
  EXPECT_EQ(worker.Turn().size(), 1u);
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_EQ(worker.metrics().ahead_tokens_dropped->Value(), 2);
  worker.LastTurn();
}

// By then what steps cost has been learned anew, of streams alone.
TEST(RunAheadLoopsTest, AfterManyStepsAheadPromptsBeginWithFewTokens) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/100),
                     /*on_device=*/true);
  worker.SendLocal(TimedWorker::Spec(1, 5));
  for (int i = 0; i < 50; ++i) worker.Turn();
  // What the first steps compute of a prompt that comes.
  const auto chunks = [&](TokenId prompt) {
    worker.SendLocal(TimedWorker::Spec(prompt, 6000));
    worker.Turn();  // the step that there was
    std::vector<int64_t> sizes;
    for (int i = 0; i < 4; ++i) {
      const auto step = worker.Turn();
      EXPECT_EQ(step.size(), 2u);
      sizes.push_back(step.back().second);
    }
    worker.Cancel(prompt);
    worker.Turn();
    return sizes;
  };
  const std::vector<int64_t> first = chunks(2);
  EXPECT_LT(first.front(), first.back());
  for (int i = 0; i < 10; ++i) worker.Turn();
  EXPECT_EQ(chunks(3).front(), first.back());
  const double ahead = worker.metrics().steps_ahead->Value();
  for (int i = 0; i < 310; ++i) worker.Turn();
  EXPECT_GT(worker.metrics().steps_ahead->Value(), ahead + 300);
  EXPECT_EQ(chunks(4), first);
}

TEST(RunAheadLoopsTest, AWorkerDoesNotEndBeforeAStepAhead) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
  spec.add_stop_token_ids(kSampled);
  spec.set_min_output_tokens(1);
  worker.SendLocal(spec);
  worker.Turn();
  worker.Turn();
  ASSERT_TRUE(worker.engine().has_ahead());
  worker.RequestDrain();
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kAhead, 1)));
  EXPECT_FALSE(worker.engine().has_ahead());
  worker.LastTurn();
  EXPECT_TRUE(worker.said().finished);
}

TEST(RunAheadLoopsTest, WhatATokenMayDecideDoesNotRunAhead) {
  const auto runs_ahead = [](const WorkerOptions& options,
                             const v1::SequenceSpec& spec) {
    TimedWorker worker(v1::WORKER_ROLE_DECODE, options, /*on_device=*/true);
    worker.SendLocal(spec);
    bool ahead = false;
    for (int i = 0; i < 4; ++i) {
      worker.Turn();
      ahead |= worker.engine().has_ahead();
    }
    worker.Cancel(1);
    worker.Turn();
    return ahead;
  };
  const WorkerOptions options = Options(/*itl_target_ms=*/0);
  v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
  EXPECT_TRUE(runs_ahead(options, spec));
  WorkerOptions off = options;
  off.run_ahead = false;
  EXPECT_FALSE(runs_ahead(off, spec));
  spec.set_top_logprobs(1);
  EXPECT_TRUE(runs_ahead(options, spec));
  spec.set_top_logprobs(0);
  spec.mutable_sampling()->set_repetition_penalty(1.5f);
  EXPECT_FALSE(runs_ahead(options, spec));
  spec.mutable_sampling()->set_repetition_penalty(1);
  spec.mutable_sampling()->set_frequency_penalty(0.5f);
  EXPECT_FALSE(runs_ahead(options, spec));
}

// Its prefill side has no step while the device has one of the decode side, and
// its streams' tokens are told at once.
TEST(RunAheadLoopsTest, ADualWorkersPromptsWaitForTheStepThatIsThere) {
  TimedWorker worker(v1::WORKER_ROLE_UNSPECIFIED, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  worker.SendLocal(TimedWorker::Spec(1, 5));
  EXPECT_EQ(worker.Turn().size(), 1u);
  worker.Turn();
  ASSERT_TRUE(worker.engine().has_ahead());
  EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kAhead, 1)));
  EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1, 2));
  ASSERT_TRUE(worker.engine().has_ahead());
  // It comes while a step runs, and is seen before another is given.
  worker.engine().while_running = [&] {
    worker.SendPrefill(TimedWorker::Spec(2, 40));
    worker.engine().while_running = [] {};
  };
  const absl::Time before = worker.clock().Now();
  // The stream's step, then the prompt's.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 40)));
  EXPECT_EQ(worker.clock().Now() - before, absl::Milliseconds(9 + 48));
  EXPECT_FALSE(worker.engine().has_ahead());
  EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1, 2, 3, 0));
  // Its prompt is computed: steps run ahead again.
  worker.Turn();
  EXPECT_TRUE(worker.engine().has_ahead());

  // One that comes when a step is there already waits for that.
  worker.SendPrefill(TimedWorker::Spec(3, 40));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 40)));
  worker.Turn();
  ASSERT_TRUE(worker.engine().has_ahead());
  const double steps = worker.metrics().steps->Value();
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(kAhead, 1)));
  EXPECT_EQ(worker.metrics().steps->Value(), steps + 1);
}

}  // namespace
}  // namespace baton::worker
