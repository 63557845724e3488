// A prefill worker and a decode worker on the fake network, paired, with what
// their tests do again and again.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/handoff_sender.h"
#include "kv_transfer/wire.h"
#include "tests/kv_transfer/kv_fixture.h"
#include "tests/support/fake_transport.h"

namespace baton::kv_transfer {

class ManualClock final : public Clock {
 public:
  absl::Time Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ += by; }

 private:
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

// All events of type T in `events`.
template <typename T, typename Event>
std::vector<T> Only(const std::vector<Event>& events) {
  std::vector<T> out;
  for (const Event& event : events) {
    if (const T* e = std::get_if<T>(&event)) out.push_back(*e);
  }
  return out;
}

class HandoffPairTest : public ::testing::Test {
 protected:
  static constexpr int32_t kLayers = 4;
  static constexpr int32_t kPoolBlocks = 40;
  static constexpr int64_t kPage = 256;
  static constexpr uint64_t kPrefill = 101, kDecode = 202;
  static constexpr TransferId kId{7};
  static constexpr uint32_t kGeneration = 3;
  static constexpr uint64_t kHolder = 9;

  using Receiver = HandoffReceiver;
  using Sender = HandoffSender;

  void SetUp() override {
    receiver_transport_ = network_.CreateTransport(/*listen=*/true);
    receiver_ = MakeReceiver(receiver_transport_.get());
    sender_transport_ = network_.CreateTransport(/*listen=*/false);
    sender_ = MakeSender(sender_transport_.get(), sender_memory_, kPrefill);
    ASSERT_TRUE(sender_->Pair(receiver_transport_->properties().address).ok());
    network_.RunUntilIdle();
    ASSERT_EQ(Only<PeerReady>(PollSender()).size(), 1u);
    ASSERT_EQ(Only<PeerReady>(PollReceiver()).size(), 1u);
  }
  // What it captured is gone with the test, and both sides still hang up.
  void TearDown() override { network_.judge = nullptr; }

  HandoffOptions Options(KvMemory& memory, v1::WorkerRole role,
                         uint64_t incarnation) {
    HandoffOptions options;
    options.self =
        MakeHello(role, incarnation,
                  role == v1::WORKER_ROLE_PREFILL ? "prefill-0" : "decode-0");
    options.kv = Place(memory);
    options.clock = &clock_;
    options.probe_links = probe_links_;
    options.lease_until = [this](uint64_t holder) {
      return holder == kHolder ? lease_until_ : absl::InfinitePast();
    };
    return options;
  }
  // The memory, as the hand-off is to see it.
  virtual KvGeometry Place(KvMemory& memory) { return memory.geometry(); }
  std::unique_ptr<Receiver> MakeReceiver(Transport* transport) {
    HandoffOptions options =
        Options(receiver_memory_, v1::WORKER_ROLE_DECODE, kDecode);
    options.report_layers = report_layers_;
    options.stall_timeout = receiver_stall_timeout_;
    options.wake = [this] { ++receiver_wakes_; };
    return *Receiver::Create(transport, options);
  }
  std::unique_ptr<Sender> MakeSender(Transport* transport, KvMemory& memory,
                                     uint64_t incarnation) {
    HandoffOptions options =
        Options(memory, v1::WORKER_ROLE_PREFILL, incarnation);
    options.stall_timeout = sender_stall_timeout_;
    options.wake = [this] { ++sender_wakes_; };
    return *Sender::Create(transport, options);
  }

  absl::Time In(absl::Duration d) { return clock_.Now() + d; }
  void AdvanceAndTick(absl::Duration by) {
    clock_.Advance(by);
    network_.Tick();
    network_.RunUntilIdle();
  }

  std::vector<Sender::Event> PollSender() { return sender_->Poll(); }
  std::vector<Receiver::Event> PollReceiver() { return receiver_->Poll(); }

  Receiver::OpenTransfer OpenOf(std::vector<BlockId> blocks) {
    Receiver::OpenTransfer open;
    open.transfer = kId;
    open.generation = kGeneration;
    open.blocks = std::move(blocks);
    open.sender = Incarnation{kPrefill};
    open.deadline = In(absl::Seconds(10));
    open.holder = kHolder;
    return open;
  }
  Sender::Grant GrantOf(int32_t first_block, int32_t num_blocks) {
    Sender::Grant grant;
    grant.transfer = kId;
    grant.generation = kGeneration;
    grant.receiver = Incarnation{kDecode};
    grant.first_token = first_block * kBlockTokens;
    grant.num_tokens = num_blocks * kBlockTokens;
    grant.holder = kHolder;
    return grant;
  }

  // Receiver and sender agree on `n` blocks; the sender's hold the KV of
  // sequence 1, on the receiver nothing has come yet.
  void OpenAndStart(int32_t n) {
    for (int32_t i = 0; i < n; ++i) {
      // Scattered; both steps are coprime to the size of the pool.
      source_.push_back((37 * i + 39) % kPoolBlocks);
      target_.push_back((7 * i + 3) % kPoolBlocks);
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      for (int32_t i = 0; i < n; ++i) {
        sender_memory_.Write(1, layer, i, source_[i]);
      }
    }
    ASSERT_TRUE(receiver_->Open(OpenOf(target_)).ok());
    ASSERT_TRUE(
        sender_->Start(GrantOf(0, n), source_, In(absl::Seconds(10))).ok());
  }
  void SendAllLayers(int32_t n) { SendAllLayers(n, *sender_); }
  static void SendAllLayers(int32_t n, Sender& sender) {
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      sender.SendLayer(kId, layer, n);
    }
  }

  ManualClock clock_;
  absl::Time lease_until_ = absl::InfiniteFuture();
  bool report_layers_ = false;
  bool probe_links_ = false;
  absl::Duration receiver_stall_timeout_ = absl::InfiniteDuration();
  absl::Duration sender_stall_timeout_ = absl::InfiniteDuration();
  FakeNetwork network_;
  KvMemory sender_memory_{kLayers, kPoolBlocks, kPage};
  KvMemory receiver_memory_{kLayers, kPoolBlocks, kPage};
  int sender_wakes_ = 0, receiver_wakes_ = 0;
  std::unique_ptr<Transport> receiver_transport_, sender_transport_;
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<Sender> sender_;
  std::vector<BlockId> source_, target_;
};

}  // namespace baton::kv_transfer
