// Who gets staged blocks, and when.
#include "prefill_worker/kv_sends.h"

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/handoff_receiver.h"
#include "tests/sim/sim_engine.h"
#include "tests/support/fake_transport.h"
#include "worker/worker_hello.h"
#include "worker/worker_process.h"

namespace baton::prefill_worker {
namespace {

using kv_transfer::HandoffReceiver;
using kv_transfer::HandoffSender;

constexpr int32_t kStaged = 5;

class KvSendsTest : public testing::Test {
 protected:
  KvSendsTest() {
    to_ = network_.CreateTransport(/*listen=*/true);
    receiver_ = *HandoffReceiver::Create(
        to_.get(), Options(v1::WORKER_ROLE_DECODE, &decode_engine_));
    from_ = network_.CreateTransport(/*listen=*/false);
    sender_ = *HandoffSender::Create(
        from_.get(), Options(v1::WORKER_ROLE_PREFILL, &engine_));
    CHECK(sender_->Pair(to_->properties().address).ok());
    network_.RunUntilIdle();
    CHECK(sender_->IsReady(receiver_id_));
    sends_ = std::make_unique<KvSends>(sender_.get(), &engine_, &blocks_);
  }

  kv_transfer::HandoffOptions Options(v1::WorkerRole role,
                                      engine::Engine* engine) {
    kv_transfer::HandoffOptions options;
    options.self = worker::MakePeerHello(role, "worker", *engine);
    if (role == v1::WORKER_ROLE_DECODE) {
      receiver_id_ = Incarnation{options.self.incarnation()};
    }
    options.kv = worker::Geometry(engine);
    return options;
  }

  // Of a prompt with so many blocks.
  absl::StatusOr<bool> Start(uint64_t transfer, int32_t count) {
    HandoffSender::Grant grant;
    grant.transfer = TransferId{transfer};
    grant.generation = 1;
    grant.receiver = receiver_id_;
    grant.num_tokens = count * sim::kBlockSize;
    std::vector<BlockId> blocks;
    for (BlockId block = 0; block < count; ++block) blocks.push_back(block);
    return sends_->Start(grant, blocks, absl::InfiniteFuture());
  }
  // Ends it, and gives back what it had.
  void End(uint64_t transfer) {
    sender_->Abort(TransferId{transfer});
    network_.RunUntilIdle();
    bool quiet = false;
    for (const HandoffSender::Event& event : sender_->Poll()) {
      const auto* quiesced = std::get_if<HandoffSender::Quiesced>(&event);
      if (quiesced == nullptr) continue;
      EXPECT_EQ(quiesced->transfer, TransferId{transfer});
      sends_->Release(quiesced->transfer);
      quiet = true;
    }
    EXPECT_TRUE(quiet);
  }
  void ExpectStarts(uint64_t transfer, int32_t count, bool starts) {
    const absl::StatusOr<bool> started = Start(transfer, count);
    ASSERT_TRUE(started.ok()) << started.status();
    EXPECT_EQ(*started, starts) << transfer;
  }

  static sim::SimEngine::Hooks Hooks() {
    return {.on_plan = [](const auto&) {},
            .interlude = [] {},
            .copied = [] { return true; }};
  }

  sim::SimEngine engine_{12, Hooks(), kStaged};
  sim::SimEngine decode_engine_{12, Hooks()};
  worker::KvBlocks blocks_{&engine_, /*prefix_cache=*/false};
  kv_transfer::FakeNetwork network_{1};
  Incarnation receiver_id_{};
  std::unique_ptr<kv_transfer::Transport> to_, from_;
  std::unique_ptr<HandoffReceiver> receiver_;
  std::unique_ptr<HandoffSender> sender_;
  std::unique_ptr<KvSends> sends_;
};

TEST_F(KvSendsTest, ALongPromptIsNotPassedByShortOnes) {
  ExpectStarts(1, 3, true);
  ExpectStarts(2, 4, false);
  // There would be room for it.
  ExpectStarts(3, 1, false);
  End(1);
  ExpectStarts(3, 1, false);
  ExpectStarts(2, 4, true);
  ExpectStarts(3, 1, true);
  EXPECT_EQ(blocks_.staged->num_in_use(), kStaged);
}

TEST_F(KvSendsTest, WhoIsForgottenKeepsNobodyWaiting) {
  ExpectStarts(1, 3, true);
  ExpectStarts(2, 4, false);
  ExpectStarts(3, 1, false);
  sends_->Forget(TransferId{2});
  ExpectStarts(3, 1, true);
}

TEST_F(KvSendsTest, WhatCanNeverStartIsAnErrorAndKeepsNobodyWaiting) {
  const absl::StatusOr<bool> started = Start(1, kStaged + 1);
  EXPECT_EQ(started.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(started.status().message(),
              testing::HasSubstr("--kv-staging-memory"));
  ExpectStarts(2, kStaged, true);
}

TEST_F(KvSendsTest, APrefillWorkerSaysWhatItCanHandOver) {
  const auto max_context = [&](v1::WorkerRole role, int32_t num_loops) {
    return worker::MakeWorkerHello({}, worker::MakePeerHello(role, "", engine_),
                                   engine_, "", num_loops)
        .max_context();
  };
  constexpr uint32_t kAll = kStaged * sim::kBlockSize;
  EXPECT_EQ(max_context(v1::WORKER_ROLE_PREFILL, 1), kAll);
  EXPECT_EQ(max_context(v1::WORKER_ROLE_PREFILL, 2),
            kStaged / 2 * sim::kBlockSize);
  EXPECT_EQ(max_context(v1::WORKER_ROLE_DECODE, 2),
            static_cast<uint32_t>(sim::kMaxPosition));
}

}  // namespace
}  // namespace baton::prefill_worker
