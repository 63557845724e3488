// The loops with an engine whose steps take as long as a cost model says: how
// much of a prompt a step computes, and of which.
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prefill_worker/grant_wait.h"
#include "tests/worker/timed_worker.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Pair;
using timed::kSampled;
using timed::Options;
using timed::TimedWorker;

TEST(StepTimeLoopsTest, ChunksKeepTheTargetOfTheStreams) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/100));
  worker.SendLocal(TimedWorker::Spec(1, 5));
  // The loop learns what steps of the stream alone take.
  for (int i = 0; i < 50; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  std::vector<int64_t> chunks;
  std::vector<double> times;
  for (int i = 0; i < 40; ++i) {
    const double before = worker.metrics().mixed_steps->Value();
    times.push_back(absl::ToDoubleMilliseconds(worker.TimeOfTurn()));
    EXPECT_EQ(worker.metrics().mixed_steps->Value(), before + 1);
    chunks.push_back(static_cast<int64_t>(times.back() - 8.5));
  }
  EXPECT_THAT(times, Each(Le(100)));
  // 90 ms hold the stream's token and 81 more.
  chunks.erase(chunks.begin(), chunks.begin() + 5);
  EXPECT_THAT(chunks, Each(AllOf(Ge(75), Le(85))));
  EXPECT_EQ(worker.metrics().mixed_steps_time_bound->Value(), 40);
  EXPECT_NEAR(worker.metrics().mixed_step_predicted->Value(), 1, 0.05);

  worker.Cancel(1);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  EXPECT_EQ(worker.metrics().mixed_steps->Value(), 40);
  worker.SendLocal(TimedWorker::Spec(3, 1));
  EXPECT_LE(worker.TimeOfTurn(), absl::Milliseconds(100));
}

TEST(StepTimeLoopsTest, ARequestsOwnTargetIsHeeded) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec stream = TimedWorker::Spec(1, 5);
  stream.mutable_target()->set_itl_ms(50);
  worker.SendLocal(stream);
  for (int i = 0; i < 10; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(worker.TimeOfTurn(), absl::Milliseconds(50));
  }
  // Without it, nobody minds.
  worker.Cancel(1);
  worker.SendLocal(TimedWorker::Spec(3, 1));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 1), Pair(2, 511)));
}

TEST(StepTimeLoopsTest, InteractivePromptsGoBeforeBatchOnesHere) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec batch = TimedWorker::Spec(1, 2000);
  batch.set_request_class(v1::REQUEST_CLASS_BATCH);
  worker.SendLocal(batch);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 512)));
  worker.SendLocal(TimedWorker::Spec(2, 100));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 100), Pair(1, 412)));
}

TEST(StepTimeLoopsTest, PrefillWorkersTakeTheUrgentFirst) {
  TimedWorker worker(v1::WORKER_ROLE_PREFILL, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec batch = TimedWorker::Spec(1, 2000);
  batch.set_request_class(v1::REQUEST_CLASS_BATCH);
  worker.SendPrefill(batch);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 512)));
  }
  // 464 tokens are left of it. Of the others, the first one cannot be in time:
  // 700 tokens take more than 700 ms.
  v1::SequenceSpec late = TimedWorker::Spec(2, 700);
  late.mutable_target()->set_ttft_ms(600);
  v1::SequenceSpec low = TimedWorker::Spec(3, 300);
  low.set_priority(-1);
  low.mutable_target()->set_ttft_ms(600);
  worker.SendPrefill(late);
  worker.SendPrefill(low);
  worker.SendPrefill(TimedWorker::Spec(4, 100));
  // None waits for the end of another: steps cost little.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(4, 100)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 300)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 188)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 464)));
}

// A step that computes a whole prompt could not hide its hand-off else.
TEST(StepTimeLoopsTest, PrefillWorkersWaitAMomentForGrants) {
  TimedWorker worker(v1::WORKER_ROLE_PREFILL, Options(/*itl_target_ms=*/0));
  // Until it is known what a step takes.
  for (const TokenId token : {10, 11, 12}) {
    worker.SendPrefill(TimedWorker::Spec(token, 512));
    EXPECT_THAT(worker.Turn(), ElementsAre(Pair(token, 512)));
  }
  worker.SendPrefill(TimedWorker::Spec(2, 100));
  EXPECT_THAT(worker.Turn(), IsEmpty());
  worker.clock().Advance(absl::Microseconds(500));
  EXPECT_THAT(worker.Turn(), IsEmpty());
  worker.SendGrant(2, 100);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 100)));
  // One that does not come in time is not waited for.
  worker.SendPrefill(TimedWorker::Spec(3, 100));
  EXPECT_THAT(worker.Turn(), IsEmpty());
  worker.clock().Advance(absl::Milliseconds(1));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 100)));
  // Nor is one for a prompt with which the next step is not done, ...
  worker.SendPrefill(TimedWorker::Spec(4, 600));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(4, 512)));
  // ... nor while there is another to be computed.
  worker.SendPrefill(TimedWorker::Spec(5, 100));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(4, 88)));
  // By then it has waited long enough.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(5, 100)));
  // The answer is one token: nothing is handed over.
  v1::SequenceSpec one = TimedWorker::Spec(6, 100);
  one.set_max_output_tokens(1);
  worker.SendPrefill(one);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(6, 100)));
}

TEST(GrantWaitTest, IsWorthAFiftiethOfAStep) {
  prefill_worker::GrantWait wait;
  EXPECT_EQ(wait.expected(), absl::Microseconds(300));
  EXPECT_EQ(wait.For(absl::Milliseconds(14)), absl::ZeroDuration());
  EXPECT_EQ(wait.For(absl::Milliseconds(16)), absl::Microseconds(900));
  EXPECT_EQ(wait.For(absl::Seconds(10)), absl::Microseconds(900));
  for (int i = 0; i < 4; ++i) wait.Came(absl::Milliseconds(3));
  EXPECT_EQ(wait.expected(), absl::Milliseconds(3));
  EXPECT_EQ(wait.For(absl::Milliseconds(100)), absl::ZeroDuration());
  EXPECT_EQ(wait.For(absl::Milliseconds(200)), absl::Milliseconds(5));
  // A crowd is forgotten with the first that is quick again, and one that is
  // late says nothing by itself.
  for (int i = 0; i < 100; ++i) wait.Came(absl::Milliseconds(40));
  wait.Came(absl::Microseconds(200));
  wait.Came(absl::Minutes(1));
  EXPECT_EQ(wait.For(absl::Milliseconds(16)), absl::Microseconds(600));
  wait.Came(-absl::Milliseconds(3));
  EXPECT_EQ(wait.expected(), absl::ZeroDuration());
  for (int i = 0; i < 4; ++i) wait.Came(absl::Milliseconds(40));
  EXPECT_EQ(wait.For(absl::Milliseconds(100)), absl::ZeroDuration());
}

TEST(StepTimeLoopsTest, PrefillWorkersCountWhatNobodyWants) {
  TimedWorker worker(v1::WORKER_ROLE_PREFILL, Options(/*itl_target_ms=*/0));
  const auto wasted = [&worker] {
    return std::pair(worker.metrics().wasted_prompt_tokens->Value(),
                     worker.metrics().wasted_output_tokens->Value());
  };
  worker.SendPrefill(TimedWorker::Spec(1, 2000));
  worker.Turn();
  worker.Cancel(1);  // its other leg failed
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(0, 0));
  worker.SendPrefill(TimedWorker::Spec(2, 2000));
  worker.Turn();
  worker.Turn();
  worker.Cancel(2, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1024, 0));
  // All of it computed, and the first token sampled; it waits for a grant.
  worker.SendPrefill(TimedWorker::Spec(3, 100));
  EXPECT_THAT(worker.Turn(), IsEmpty());
  worker.clock().Advance(absl::Milliseconds(1));
  worker.Turn();
  worker.Cancel(3, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1124, 1));
  // Nothing was computed of one whose turn had not come.
  v1::SequenceSpec late = TimedWorker::Spec(4, 100);
  late.set_deadline_ms(1);
  worker.SendPrefill(TimedWorker::Spec(5, 512));
  worker.SendPrefill(late);
  worker.Turn();
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1124, 1));
}

TEST(StepTimeLoopsTest, WhatCameDuringAStepHasWaitedSince) {
  for (const auto role : {v1::WORKER_ROLE_DECODE, v1::WORKER_ROLE_PREFILL}) {
    TimedWorker worker(role, Options(/*itl_target_ms=*/100));
    worker.ReceivedAt(worker.clock().Now() - absl::Milliseconds(40));
    if (role == v1::WORKER_ROLE_DECODE) {
      worker.SendLocal(TimedWorker::Spec(1, 5));
    } else {
      worker.SendPrefill(TimedWorker::Spec(1, 5));
    }
    worker.Turn();
    const auto queued = worker.metrics().queue_seconds->Collect().histogram;
    EXPECT_EQ(queued.sample_count, 1u);
    EXPECT_NEAR(queued.sample_sum, 0.04, 1e-9);
  }
}

TEST(StepTimeLoopsTest, AHandOffThatNearsItsEndFindsAShortStep) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/100));
  const auto sender = worker.PairedSender();
  // The loop learns what steps take.
  worker.SendLocal(TimedWorker::Spec(1, 5));
  for (int i = 0; i < 50; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  for (int i = 0; i < 10; ++i) worker.Turn();
  worker.Cancel(1);
  worker.SendReserve(TimedWorker::Spec(3, 32));
  // Reserved: it may be long until it comes.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  const v1::Grant& grant = worker.said().grant;
  const TransferId transfer{grant.transfer_id()};
  ASSERT_TRUE(sender
                  ->Start({.transfer = transfer,
                           .generation = grant.generation(),
                           .receiver = Incarnation{grant.decode_incarnation()},
                           .num_tokens = 32},
                          {900, 901}, worker.clock().Now() + absl::Seconds(10))
                  .ok());
  sender->SendLayer(transfer, 0, 1);
  worker.network().RunUntilIdle();
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  sender->SendLayer(transfer, 0, 2);
  worker.network().RunUntilIdle();
  const absl::Duration took = worker.TimeOfTurn();
  EXPECT_GT(took, absl::Milliseconds(80));
  EXPECT_LT(took, absl::Milliseconds(100));
  // It landed 60 ms ago: the first step beside it has what is left of 95.
  sender->Commit(transfer,
                 {.first_token = 5, .next_token_index = 1, .num_tokens = 32});
  worker.network().RunUntilIdle();
  worker.clock().Advance(absl::Milliseconds(60));
  EXPECT_LT(worker.TimeOfTurn(), absl::Milliseconds(36));
  EXPECT_EQ(worker.said().load.queued_prompts(), 1u);
}

}  // namespace
}  // namespace baton::worker
