// A decode worker with too few blocks for its sequences: some give theirs up
// and go on later, here or at the router, and every answer is the one that a
// worker with blocks for all gives.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/worker/worker_loops_fixture.h"

namespace baton::worker {
namespace {

// A stream takes 32 blocks in the end, and another one three to begin with.
constexpr int kBlocks = 34;
constexpr uint32_t kOutput = 470;

class PreemptionLoopsTest : public WorkerLoopsTest {
 protected:
  // A stream, and how far it is.
  struct Stream {
    v1::SequenceSpec spec;
    std::vector<uint32_t> output;
    bool done = false;
    int preempted = 0;
  };

  void StartSmall(int64_t swap_memory, double swap_seconds = 60,
                  int blocks = kBlocks) {
    WorkerOptions decode = Options("decode-0");
    // Of the tiny model, as the first of these workers says.
    WorkerOptions large = Options("large");
    large_worker_ =
        std::make_unique<InProcessWorker>(v1::WORKER_ROLE_DECODE, large);
    decode.engine.kv_memory_bytes =
        blocks * large_worker_->engine()->kv_layout().block_bytes();
    decode.output_reserve = 8;
    decode.swap_memory_bytes = swap_memory;
    decode.swap_seconds = swap_seconds;
    decode.prefix_cache = true;
    decode_worker_ =
        std::make_unique<InProcessWorker>(v1::WORKER_ROLE_DECODE, decode);
    decode_ = std::make_unique<RouterStream>(decode_worker_->address());
    large_ = std::make_unique<RouterStream>(large_worker_->address());
  }

  // Streams of 40 prompt tokens each.
  static std::vector<Stream> Streams(int count) {
    std::vector<Stream> streams;
    for (int i = 0; i < count; ++i) {
      Stream stream;
      stream.spec = Spec(40, kOutput);
      stream.spec.set_tokens(0, static_cast<uint32_t>(i));
      stream.spec.mutable_sampling()->set_seed(static_cast<uint64_t>(100 + i));
      streams.push_back(std::move(stream));
    }
    return streams;
  }

  void Ask(Stream* stream) {
    v1::SequenceSpec spec = stream->spec;
    for (uint32_t token : stream->output) spec.add_tokens(token);
    by_attempt_[++last_attempt_] = stream;
    SendReserve(last_attempt_, spec, /*local=*/true);
  }

  // As a router does: asks for all, and again for what was refused or preempted
  // whenever something has happened.
  void RunAll(std::vector<Stream>* streams) {
    std::vector<Stream*> waiting;
    for (Stream& stream : *streams) Ask(&stream);
    size_t left = streams->size();
    while (left > 0 && !HasFailure()) {
      const v1::WorkerMessage message =
          decode_->Await([](const v1::WorkerMessage&) { return true; });
      for (const v1::Token& token : message.tokens().tokens()) {
        Stream& stream = *by_attempt_.at(token.attempt());
        EXPECT_EQ(token.index(), stream.output.size());
        stream.output.push_back(token.id());
      }
      if (message.has_refusal()) {
        EXPECT_EQ(message.refusal().reason(), v1::REFUSAL_REASON_NO_BLOCKS);
        waiting.push_back(by_attempt_.at(message.refusal().attempt()));
      }
      if (!message.has_outcome() && !message.has_load()) continue;
      std::vector<Stream*> again;
      again.swap(waiting);
      if (message.has_outcome()) {
        const v1::Outcome& outcome = message.outcome();
        Stream* stream = by_attempt_.at(outcome.attempt());
        if (outcome.ok()) {
          stream->done = true;
          --left;
        } else {
          EXPECT_EQ(outcome.failure(), v1::FAILURE_KIND_PREEMPTED)
              << outcome.error();
          EXPECT_TRUE(outcome.retryable());
          ++stream->preempted;
          again.push_back(stream);
        }
      }
      for (Stream* stream : again) Ask(stream);
    }
  }

  void ExpectRightAnswers(const std::vector<Stream>& streams) {
    std::swap(decode_, large_);
    for (const Stream& stream : streams) {
      EXPECT_TRUE(stream.done);
      EXPECT_EQ(stream.output, Expected(++last_attempt_, stream.spec));
    }
    std::swap(decode_, large_);
  }

  void ExpectAllFree() {
    decode_->AwaitFreeBlocks(decode_->hello().total_blocks());
  }

  std::unique_ptr<InProcessWorker> large_worker_;
  std::unique_ptr<RouterStream> large_;
  std::map<uint64_t, Stream*> by_attempt_;
  uint64_t last_attempt_ = 0;
};

TEST_F(PreemptionLoopsTest, BackToTheRouterAndOnFromThere) {
  StartSmall(/*swap_memory=*/0);
  EXPECT_EQ(decode_->hello().output_reserve(), 8u);
  std::vector<Stream> streams = Streams(4);
  RunAll(&streams);
  int preempted = 0;
  for (const Stream& stream : streams) preempted += stream.preempted;
  EXPECT_GT(preempted, 0);
  EXPECT_EQ(streams[0].preempted, 0) << "the oldest one";
  ExpectRightAnswers(streams);
  ExpectAllFree();
}

TEST_F(PreemptionLoopsTest, ThroughTheHostsMemory) {
  StartSmall(/*swap_memory=*/1 << 20);
  std::vector<Stream> streams = Streams(4);
  RunAll(&streams);
  // The first one that gives way shows what copies take. Of a model this small
  // computing may be cheaper, so others may have gone back.
  EXPECT_GE(
      decode_worker_->metrics()->swap_seconds->Collect().histogram.sample_count,
      2u)
      << "there, and back";
  EXPECT_EQ(streams[0].preempted, 0);
  ExpectRightAnswers(streams);
  ExpectAllFree();
}

TEST_F(PreemptionLoopsTest, WhoWaitsTooLongInTheHostsMemoryGoesBack) {
  StartSmall(/*swap_memory=*/1 << 20, /*swap_seconds=*/0);
  std::vector<Stream> streams = Streams(3);
  RunAll(&streams);
  int preempted = 0;
  for (const Stream& stream : streams) preempted += stream.preempted;
  EXPECT_GT(preempted, 0);
  ExpectRightAnswers(streams);
  ExpectAllFree();
}

TEST_F(PreemptionLoopsTest, WhatCouldNeverEndIsRefusedForGood) {
  constexpr int kFew = 14;
  StartSmall(/*swap_memory=*/0, /*swap_seconds=*/0, kFew);
  SendReserve(1, Spec(40, kFew * 16 - 40 + 2), /*local=*/true);
  EXPECT_EQ(decode_->AwaitRefusal(1).reason(), v1::REFUSAL_REASON_TOO_LARGE);
  // One less needs all of them, and gets them one by one.
  Stream stream;
  stream.spec = Spec(40, kFew * 16 - 40 + 1);
  std::vector<Stream> streams = {stream};
  RunAll(&streams);
  ExpectRightAnswers(streams);
}

// As above, but KV came from a prefill worker.
TEST_F(PreemptionLoopsTest, WhatWasHandedOverGivesWayToo) {
  WorkerOptions decode = Options("decode-0");
  Start();
  decode.engine.kv_memory_bytes =
      kBlocks * decode_worker_->engine()->kv_layout().block_bytes();
  decode.output_reserve = 8;
  Start(Options("prefill-0"), decode);
  std::vector<Stream> streams = Streams(2);
  for (const uint64_t attempt : {10, 11}) {
    SendReserve(attempt, streams[attempt - 10].spec);
    SendPrefill(attempt, streams[attempt - 10].spec);
  }
  for (const uint64_t attempt : {10, 11}) {
    SendGrant(decode_->AwaitGrant(attempt));
  }
  const v1::Outcome preempted = decode_->AwaitOutcome(11);
  EXPECT_EQ(preempted.failure(), v1::FAILURE_KIND_PREEMPTED);
  EXPECT_TRUE(preempted.retryable());
  EXPECT_EQ(prefill_->AwaitTokens(10, 1).size(), 1u);
  EXPECT_EQ(decode_->AwaitTokens(10, kOutput - 1).size(), kOutput - 1);
  EXPECT_TRUE(decode_->AwaitOutcome(10).ok());
  ExpectAllBlocksFree();
}

}  // namespace
}  // namespace baton::worker
