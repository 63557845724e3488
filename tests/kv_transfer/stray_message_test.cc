// What the receiver does with messages that fit no transfer, and with peers
// that say what they should not.
#include <utility>

#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A peer of the receiver that says what the test wants.
class RawPeer final : public TransportHandler {
 public:
  RawPeer(FakeNetwork& network, KvMemory& memory, uint64_t incarnation)
      : transport_(network.CreateTransport(false)), incarnation_(incarnation) {
    region_ =
        *transport_->RegisterRegion(memory.geometry().memory, kNoDescriptor);
    transport_->Start(this);
  }
  ~RawPeer() override { transport_->Stop(); }

  void ConnectAndGreet(FakeNetwork& network, const std::string& address) {
    peer_ = *transport_->Connect(address);
    network.RunUntilIdle();
    Send(MakeHello(v1::WORKER_ROLE_PREFILL, incarnation_, "raw"), 0);
    network.RunUntilIdle();
  }
  void Send(wire::Body body, uint64_t to, uint64_t payload_bytes = 0,
            std::optional<uint64_t> from = std::nullopt) {
    const std::string bytes =
        wire::Encode({Incarnation{from.value_or(incarnation_)}, Incarnation{to},
                      std::move(body)});
    std::vector<Extent> payload;
    if (payload_bytes > 0) payload.push_back({region_, 0, payload_bytes});
    ASSERT_TRUE(
        transport_
            ->Send(peer_,
                   ByteSpan(reinterpret_cast<const std::byte*>(bytes.data()),
                            bytes.size()),
                   payload, 1)
            .ok());
  }
  // The messages that came since the last call.
  std::vector<wire::Message> Take() { return std::exchange(messages_, {}); }
  bool down() const { return down_; }

  void OnPeerUp(PeerId, const std::string&) override {}
  void OnPeerDown(PeerId, const absl::Status&) override { down_ = true; }
  void OnMessage(PeerId, ByteSpan header) override {
    auto message = wire::Decode(header);
    ASSERT_TRUE(message.ok());
    messages_.push_back(*message);
  }
  std::optional<Landing> OnPayload(PeerId, ByteSpan, uint64_t) override {
    return std::nullopt;
  }
  void OnLanded(PeerId, uint64_t, const absl::Status&) override {}
  void OnSent(PeerId, uint64_t, const absl::Status&) override {}
  void OnTick() override {}

 private:
  std::unique_ptr<Transport> transport_;
  const uint64_t incarnation_;
  RegionId region_{};
  PeerId peer_{};
  bool down_ = false;
  std::vector<wire::Message> messages_;
};

class StrayMessageTest : public HandoffPairTest {
 protected:
  void SetUp() override {
    HandoffPairTest::SetUp();
    raw_.ConnectAndGreet(network_, receiver_transport_->properties().address);
    ASSERT_THAT(raw_.Take(), SizeIs(1));
    PollReceiver();
    auto open = OpenOf({1, 2, 3});
    open.sender = Incarnation{kRaw};
    ASSERT_TRUE(receiver_->Open(open).ok());
  }
  void SendKv(wire::Kv kv, uint64_t payload_bytes) {
    raw_.Send(kv, kDecode, payload_bytes);
    network_.RunUntilIdle();
  }
  bool Untouched() { return receiver_memory_.UntouchedExcept({}); }

  static constexpr uint64_t kRaw = 303;
  KvMemory raw_memory_{kLayers, kPoolBlocks, kPage};
  RawPeer raw_{network_, raw_memory_, kRaw};
};

TEST_F(StrayMessageTest, UnknownTransferIsDroppedAndAnswered) {
  SendKv({TransferId{999}, kGeneration, 0, 0, 1}, kPage);
  EXPECT_TRUE(Untouched());
  const auto answers = raw_.Take();
  ASSERT_THAT(answers, SizeIs(1));
  EXPECT_EQ(std::get<wire::Abort>(answers[0].body).reason,
            TransferOutcome::kUnknownTransfer);
  EXPECT_EQ(receiver_->stats().messages_dropped, 1u);
  EXPECT_THAT(PollReceiver(), IsEmpty());
}

TEST_F(StrayMessageTest, StaleGenerationIsDropped) {
  SendKv({kId, kGeneration - 1, 0, 0, 1}, kPage);
  EXPECT_TRUE(Untouched());
  raw_.Send(wire::Commit{kId, kGeneration - 1, kLayers, 3}, kDecode);
  network_.RunUntilIdle();
  const auto answers = raw_.Take();
  ASSERT_THAT(answers, SizeIs(2));
  EXPECT_EQ(std::get<wire::CommitAck>(answers[1].body).outcome,
            TransferOutcome::kUnknownTransfer);
  raw_.Send(wire::Abort{kId, kGeneration - 1, TransferOutcome::kCancelled},
            kDecode);
  network_.RunUntilIdle();
  EXPECT_THAT(PollReceiver(), IsEmpty());
  EXPECT_EQ(receiver_->stats().transfers_open, 1u);
}

TEST_F(StrayMessageTest, AnotherPeersTransferIsDropped) {
  auto open = OpenOf({4});
  open.transfer = TransferId{8};
  open.sender = Incarnation{kPrefill};
  ASSERT_TRUE(receiver_->Open(open).ok());
  SendKv({TransferId{8}, kGeneration, 0, 0, 1}, kPage);
  EXPECT_TRUE(Untouched());
  EXPECT_EQ(std::get<wire::Abort>(raw_.Take()[0].body).reason,
            TransferOutcome::kWrongPeer);
  EXPECT_EQ(receiver_->stats().transfers_open, 2u);
}

TEST_F(StrayMessageTest, OutOfRangePagesFailTheTransferAlone) {
  auto open = OpenOf({4});
  open.transfer = TransferId{8};
  open.sender = Incarnation{kRaw};
  ASSERT_TRUE(receiver_->Open(open).ok());
  SendKv({kId, kGeneration, 0, 2, 2}, 2 * kPage);
  EXPECT_TRUE(Untouched());
  const auto events = PollReceiver();
  const auto failed = Only<Receiver::Failed>(events);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].transfer, kId);
  EXPECT_EQ(failed[0].outcome, TransferOutcome::kOutOfRange);
  EXPECT_THAT(failed[0].detail, HasSubstr("pages 2+2"));
  EXPECT_THAT(Only<Receiver::Quiesced>(events), SizeIs(1));
  EXPECT_EQ(std::get<wire::Abort>(raw_.Take()[0].body).reason,
            TransferOutcome::kOutOfRange);
  EXPECT_EQ(receiver_->stats().transfers_open, 1u);
  EXPECT_FALSE(raw_.down());
}

TEST_F(StrayMessageTest, PayloadOfAnotherSizeIsRefused) {
  SendKv({kId, kGeneration, 0, 0, 2}, kPage);
  EXPECT_TRUE(Untouched());
  EXPECT_THAT(Only<Receiver::Failed>(PollReceiver()), SizeIs(1));
}

TEST_F(StrayMessageTest, DuplicatePagesLandOnce) {
  std::fill(raw_memory_.Page(0, 0).begin(), raw_memory_.Page(0, 0).end(),
            std::byte{1});
  SendKv({kId, kGeneration, 0, 0, 1}, kPage);
  const std::vector<std::byte> after_first = receiver_memory_.bytes();
  std::fill(raw_memory_.Page(0, 0).begin(), raw_memory_.Page(0, 0).end(),
            std::byte{2});
  SendKv({kId, kGeneration, 0, 0, 1}, kPage);
  SendKv({kId, kGeneration, 0, 0, 2}, 2 * kPage);  // overlaps
  EXPECT_TRUE(receiver_memory_.bytes() == after_first);
  EXPECT_EQ(receiver_->stats().messages_dropped, 2u);
  EXPECT_EQ(receiver_->stats().transfers_open, 1u);
}

TEST_F(StrayMessageTest, CommitWithAForeignTokenFails) {
  wire::Commit commit{kId, kGeneration, kLayers, 3};
  commit.total_bytes = 3 * kLayers * kPage;
  commit.record.first_token = 1000;  // vocab_size
  raw_.Send(commit, kDecode);
  network_.RunUntilIdle();
  EXPECT_EQ(Only<Receiver::Failed>(PollReceiver())[0].outcome,
            TransferOutcome::kOutOfRange);
  EXPECT_EQ(std::get<wire::CommitAck>(raw_.Take()[0].body).outcome,
            TransferOutcome::kOutOfRange);
}

TEST_F(StrayMessageTest, AnotherIncarnationInAMessageClosesThePeer) {
  raw_.Send(wire::Kv{kId, kGeneration, 0, 0, 1}, kDecode + 1, kPage);
  network_.RunUntilIdle();
  EXPECT_TRUE(raw_.down());
  EXPECT_TRUE(Untouched());
  EXPECT_THAT(Only<PeerLost>(PollReceiver()), SizeIs(1));
  // It may connect again.
  clock_.Advance(absl::Seconds(2));
  network_.Tick();
  const auto failed = Only<Receiver::Failed>(PollReceiver());
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].outcome, TransferOutcome::kPeerLost);
}

TEST_F(StrayMessageTest, NothingCountsBeforeTheHello) {
  RawPeer mute(network_, raw_memory_, 404);
  mute.ConnectAndGreet(network_, receiver_transport_->properties().address);
  mute.Take();
  // Greeting once more is out of turn.
  mute.Send(MakeHello(v1::WORKER_ROLE_PREFILL, 404, "raw"), 0);
  network_.RunUntilIdle();
  EXPECT_TRUE(mute.down());
}

}  // namespace
}  // namespace baton::kv_transfer
