// The hand-off over this transport: what it needs of one it has.
#include <memory>

#include "kv_transfer/transports/nccl/nccl_transport.h"
#include "tests/kv_transfer/device_memory.h"
#include "tests/kv_transfer/handoff_pair.h"
#include "tests/support/fake_communicator.h"

namespace baton::kv_transfer::nccl_handoff_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr CommitRecord kRecord{.first_token = 42, .next_token_index = 1};

class NcclHandoffTest : public HandoffPairTest {
 protected:
  void SetUp() override {
    receiver_transport_ = MakeTransport(/*listen=*/true);
    receiver_ = MakeReceiver(receiver_transport_.get());
    sender_transport_ = MakeTransport(/*listen=*/false);
    sender_ = MakeSender(sender_transport_.get(), sender_memory_, kPrefill);
    ASSERT_TRUE(sender_->Pair(receiver_transport_->properties().address).ok());
    network_.RunUntilIdle();
    ASSERT_THAT(Only<PeerReady>(PollSender()), SizeIs(1));
    ASSERT_THAT(Only<PeerReady>(PollReceiver()), SizeIs(1));
  }
  void TearDown() override {
    sender_.reset();
    receiver_.reset();
    sender_transport_.reset();
    receiver_transport_.reset();
    EXPECT_THAT(fabric_.complaints(), IsEmpty());
    EXPECT_EQ(fabric_.alive(), 0);
  }

  FakeFabric fabric_;

 private:
  std::unique_ptr<Transport> MakeTransport(bool listen) {
    NcclOptions options;
    options.clock = &clock_;
    auto transport = CreateNcclTransport(
        options, network_.CreateTransport(listen), fabric_.CreateEnd());
    EXPECT_TRUE(transport.ok()) << transport.status();
    return *std::move(transport);
  }
};

TEST_F(NcclHandoffTest, WholeTransferLandsBitForBit) {
  OpenAndStart(9);
  SendAllLayers(9);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  EXPECT_THAT(Only<Sender::Acked>(PollSender()), SizeIs(1));
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
  EXPECT_TRUE(receiver_memory_.UntouchedExcept(target_));
  EXPECT_GE(fabric_.copied().size(), size_t{kLayers});
}

// KV that lies where the CPU cannot read it: whoever touches it ends the test.
class DeviceHandoffTest : public NcclHandoffTest {
 protected:
  void SetUp() override {
    probe_links_ = measures_links_;
    report_layers_ = true;
    receiver_stall_timeout_ = receiver_stall_;
    sender_stall_timeout_ = kStall;
    fabric_.SetReach([this](std::byte* at) {
      std::byte* const behind = sender_device_.Behind(at);
      return behind != nullptr ? behind : receiver_device_.Behind(at);
    });
    NcclHandoffTest::SetUp();
  }
  static constexpr absl::Duration kStall = absl::Milliseconds(500);

  KvGeometry Place(KvMemory& memory) override {
    return (&memory == &sender_memory_ ? sender_device_ : receiver_device_)
        .Place(memory.geometry());
  }

  bool measures_links_ = true;
  absl::Duration receiver_stall_ = kStall;
  DeviceMemory sender_device_{sender_memory_.geometry().memory};
  DeviceMemory receiver_device_{receiver_memory_.geometry().memory};
};

// Nothing of it has landed yet.
class NewDevicePeerTest : public DeviceHandoffTest {
 protected:
  NewDevicePeerTest() { measures_links_ = false; }
};

TEST_F(DeviceHandoffTest, WholeTransferLandsBitForBit) {
  // The link was measured, from KV memory into what is spare.
  EXPECT_THAT(fabric_.copied(), Not(IsEmpty()));
  OpenAndStart(9);
  SendAllLayers(9);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  const auto events = PollReceiver();
  EXPECT_THAT(Only<Receiver::LayerLanded>(events), SizeIs(kLayers));
  EXPECT_THAT(Only<Receiver::Landed>(events), SizeIs(1));
  EXPECT_THAT(Only<Sender::Acked>(PollSender()), SizeIs(1));
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
  EXPECT_TRUE(receiver_memory_.UntouchedExcept(target_));
  EXPECT_EQ(sender_device_.hashed(), 9 * kLayers);
  EXPECT_EQ(receiver_device_.hashed(), 9 * kLayers);
}

// What was changed on its way is not decoded on.
TEST_F(DeviceHandoffTest, AByteThatChangedIsNoticed) {
  OpenAndStart(5);
  fabric_.HoldPosts(true);
  SendAllLayers(5);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  ASSERT_GT(fabric_.posted(), 0);
  // Hashed by the sender, and not yet sent.
  sender_memory_.Page(2, source_[3])[77] ^= std::byte{4};
  fabric_.HoldPosts(false);
  network_.RunUntilIdle();
  const auto failed = Only<Receiver::Failed>(PollReceiver());
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].outcome, TransferOutcome::kChecksumMismatch);
}

// A sender that stands still after it was accepted: kernels here wait for it.
TEST_F(DeviceHandoffTest, ASenderThatSendsNothingIsClosed) {
  OpenAndStart(3);
  fabric_.HoldPosts(true);
  SendAllLayers(3);
  network_.RunUntilIdle();
  ASSERT_GT(fabric_.posted(), 0);
  clock_.Advance(kStall - absl::Milliseconds(1));
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<PeerLost>(PollReceiver()), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  network_.Tick();
  network_.RunUntilIdle();
  const auto lost = Only<PeerLost>(PollReceiver());
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_THAT(lost[0].reason, HasSubstr("nothing of what it sends came"));
  EXPECT_EQ(fabric_.posted(), 0);
}

// A communicator connects with its first group, which may take longer: on both
// sides.
TEST_F(NewDevicePeerTest, HasTimeToConnect) {
  OpenAndStart(3);
  fabric_.HoldPosts(true);
  SendAllLayers(3);
  network_.RunUntilIdle();
  ASSERT_GT(fabric_.posted(), 0);
  network_.Tick();  // the sender has looked
  clock_.Advance(9 * kStall);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<PeerLost>(PollReceiver()), IsEmpty());
  EXPECT_THAT(Only<PeerLost>(PollSender()), IsEmpty());
  clock_.Advance(kStall);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<PeerLost>(PollReceiver()), SizeIs(1));
  EXPECT_THAT(Only<PeerLost>(PollSender()), SizeIs(1));
}

class PatientReceiverTest : public DeviceHandoffTest {
 protected:
  PatientReceiverTest() { receiver_stall_ = absl::InfiniteDuration(); }
};

// Who was reached before is given up as soon as over other transports.
TEST_F(PatientReceiverTest, AReceiverThatTakesNothingIsClosed) {
  OpenAndStart(3);
  fabric_.HoldPosts(true);
  SendAllLayers(3);
  network_.RunUntilIdle();
  network_.Tick();  // the sender has looked
  clock_.Advance(kStall - absl::Milliseconds(1));
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<PeerLost>(PollSender()), IsEmpty());
  clock_.Advance(absl::Milliseconds(1));
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<PeerLost>(PollSender()), SizeIs(1));
}

// What lands now and then is waited for.
TEST_F(DeviceHandoffTest, ASlowSenderIsNotClosed) {
  OpenAndStart(3);
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    fabric_.HoldPosts(true);
    sender_->SendLayer(kId, layer, 3);
    network_.RunUntilIdle();
    clock_.Advance(kStall - absl::Milliseconds(1));
    network_.Tick();
    network_.RunUntilIdle();
    fabric_.HoldPosts(false);
    network_.RunUntilIdle();
  }
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  const auto events = PollReceiver();
  EXPECT_THAT(Only<PeerLost>(events), IsEmpty());
  EXPECT_THAT(Only<Receiver::Landed>(events), SizeIs(1));
}

// KV in another form would have to pass through the CPU.
TEST_F(DeviceHandoffTest, IsNotEncoded) {
  HandoffOptions options =
      Options(sender_memory_, v1::WORKER_ROLE_PREFILL, kPrefill);
  options.kv.bf16 = true;
  options.kv.sections = {{1, kPage / 2}};  // of two heads
  options.wire = {.encoding = WireEncoding::kInt8,
                  .below_bytes_per_second = 1e9};
  EXPECT_THAT(CheckOptions(options).message(), HasSubstr("memory of the host"));
}

// A post that is not matched cannot be taken back: the peer is closed, and the
// blocks come back when the abort of the communicator has ended.
TEST_F(NcclHandoffTest, BlocksComeBackWhenTheAbortHasEnded) {
  OpenAndStart(4);
  fabric_.HoldPosts(true);
  fabric_.HoldAborts(true);
  SendAllLayers(4);
  network_.RunUntilIdle();
  ASSERT_GT(fabric_.posted(), 0);
  receiver_->Abort(kId, TransferOutcome::kCancelled);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Quiesced>(PollReceiver()), IsEmpty());

  clock_.Advance(absl::Seconds(3));
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_EQ(receiver_->stats().blocks_quarantined, 4);
  EXPECT_THAT(Only<Receiver::Quiesced>(PollReceiver()), IsEmpty());

  fabric_.HoldAborts(false);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Quiesced>(PollReceiver()), SizeIs(1));
  EXPECT_EQ(receiver_->stats().blocks_quarantined, 0);
  EXPECT_THAT(Only<Sender::Quiesced>(PollSender()), SizeIs(1));
}

}  // namespace
}  // namespace baton::kv_transfer::nccl_handoff_test
