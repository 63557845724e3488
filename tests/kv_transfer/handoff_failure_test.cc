// The hand-off when something goes wrong: what must never happen is that a torn
// transfer lands, or that blocks come back while something may write to them.
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CommitRecord kFailingRecord{.first_token = 42, .next_token_index = 1};

class HandoffFailureTest : public HandoffPairTest {
 protected:
  // The next payload suffers `fate`, the others nothing.
  void SpoilOnePayload(FakeNetwork::Fate fate) {
    network_.judge = [fate, done = false](ByteSpan, bool has_payload) mutable {
      if (!has_payload || std::exchange(done, true)) {
        return FakeNetwork::Fate::kDeliver;
      }
      return fate;
    };
  }
  // The whole of the four blocks, by another sender than the first.
  void ExpectLandsFrom(Sender& sender) {
    ASSERT_TRUE(
        sender.Start(GrantOf(0, 4), source_, In(absl::Seconds(5))).ok());
    SendAllLayers(4, sender);
    sender.Commit(kId, kFailingRecord);
    network_.RunUntilIdle();
    EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
    EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
  }
};

TEST_F(HandoffFailureTest, LostPagesNeverLand) {
  OpenAndStart(4);
  SpoilOnePayload(FakeNetwork::Fate::kDrop);
  SendAllLayers(4);
  sender_->Commit(kId, kFailingRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(PollReceiver(), IsEmpty());
  EXPECT_THAT(PollSender(), IsEmpty());

  AdvanceAndTick(absl::Seconds(11));
  const auto received = PollReceiver();
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(std::get<Receiver::Failed>(received[0]).outcome,
            TransferOutcome::kDeadlineExceeded);
  EXPECT_EQ(std::get<Receiver::Failed>(received[0]).transport, "fake");
  EXPECT_EQ(std::get<Receiver::Quiesced>(received[1]).transfer, kId);
  const auto sent = PollSender();
  ASSERT_THAT(Only<Sender::Failed>(sent), SizeIs(1));
  EXPECT_EQ(Only<Sender::Failed>(sent)[0].transport, "fake");
  EXPECT_THAT(Only<Sender::Quiesced>(sent), SizeIs(1));
}

TEST_F(HandoffFailureTest, AlteredPagesFail) {
  OpenAndStart(4);
  SpoilOnePayload(FakeNetwork::Fate::kCorruptPayload);
  SendAllLayers(4);
  sender_->Commit(kId, kFailingRecord);
  network_.RunUntilIdle();
  const auto received = PollReceiver();
  EXPECT_THAT(Only<Receiver::Landed>(received), IsEmpty());
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(std::get<Receiver::Failed>(received[0]).outcome,
            TransferOutcome::kChecksumMismatch);
  EXPECT_TRUE(std::holds_alternative<Receiver::Quiesced>(received[1]));
  const auto sent = PollSender();
  EXPECT_EQ(std::get<Sender::Failed>(sent[0]).outcome,
            TransferOutcome::kChecksumMismatch);
  EXPECT_TRUE(std::holds_alternative<Sender::Quiesced>(sent[1]));
  EXPECT_EQ(receiver_->stats().transfers_failed, 1u);
  EXPECT_EQ(sender_->stats().transfers_failed, 1u);
}

// The sender changed a page after it had passed it on.
TEST_F(HandoffFailureTest, PagesChangedOnTheWayFail) {
  OpenAndStart(2);
  network_.judge = [](ByteSpan, bool has_payload) {
    return has_payload ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  };
  SendAllLayers(2);
  sender_->Commit(kId, kFailingRecord);
  network_.RunUntilIdle();
  sender_memory_.Write(/*sequence=*/9, 0, 0, source_[0]);
  network_.Release();
  network_.RunUntilIdle();
  EXPECT_EQ(Only<Receiver::Failed>(PollReceiver())[0].outcome,
            TransferOutcome::kChecksumMismatch);
}

TEST_F(HandoffFailureTest, AbortedTransferIsQuarantinedUntilItsReceivesEnd) {
  OpenAndStart(4);
  network_.hold_landings = true;
  sender_->SendLayer(kId, 0, 4);
  sender_->SendLayer(kId, 1, 4);
  network_.RunUntilIdle();
  receiver_->Abort(kId, TransferOutcome::kCancelled);
  network_.RunUntilIdle();
  EXPECT_THAT(PollReceiver(), IsEmpty());  // no Failed: we know; not quiet yet
  EXPECT_EQ(receiver_->stats().transfers_quarantined, 1u);
  EXPECT_EQ(receiver_->stats().blocks_quarantined, 4);

  // The sender learnt it and sends no more.
  auto sent = PollSender();
  ASSERT_THAT(Only<Sender::Failed>(sent), SizeIs(1));
  EXPECT_EQ(Only<Sender::Failed>(sent)[0].outcome, TransferOutcome::kCancelled);
  EXPECT_THAT(Only<Sender::Quiesced>(sent), IsEmpty());
  sender_->SendLayer(kId, 2, 4);

  network_.hold_landings = false;
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Quiesced>(PollReceiver()), SizeIs(1));
  EXPECT_THAT(Only<Sender::Quiesced>(PollSender()), SizeIs(1));
  EXPECT_EQ(receiver_->stats().transfers_quarantined, 0u);
  // The late writes landed in the quarantined blocks and nowhere else.
  EXPECT_TRUE(receiver_memory_.UntouchedExcept(target_));
  EXPECT_FALSE(receiver_memory_.Holds(1, 2, 0, target_[0]));
}

TEST_F(HandoffFailureTest, LateMessagesOfAnAbortedTransferTouchNothing) {
  OpenAndStart(4);
  network_.judge = [](ByteSpan, bool has_payload) {
    return has_payload ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  };
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  receiver_->Abort(kId);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Quiesced>(PollReceiver()), SizeIs(1));

  // The blocks are another request's now.
  auto open = OpenOf(target_);
  open.transfer = TransferId{8};
  ASSERT_TRUE(receiver_->Open(open).ok());
  network_.Release();
  network_.RunUntilIdle();
  EXPECT_TRUE(receiver_memory_.UntouchedExcept({}));
  EXPECT_EQ(receiver_->stats().transfers_open, 1u);
}

TEST_F(HandoffFailureTest, SameTransferMayComeAgainInAnotherGeneration) {
  OpenAndStart(3);
  network_.judge = [](ByteSpan, bool has_payload) {
    return has_payload ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  };
  sender_->SendLayer(kId, 0, 3);
  network_.RunUntilIdle();
  receiver_->Abort(kId);
  network_.RunUntilIdle();
  network_.judge = nullptr;
  auto open = OpenOf(target_);
  open.generation = kGeneration + 1;
  ASSERT_TRUE(receiver_->Open(open).ok());
  network_.Release();  // pages of the old generation
  network_.RunUntilIdle();
  EXPECT_TRUE(receiver_memory_.UntouchedExcept({}));
  PollSender();
  PollReceiver();
  auto grant = GrantOf(0, 3);
  grant.generation = kGeneration + 1;
  ASSERT_TRUE(sender_->Start(grant, source_, In(absl::Seconds(10))).ok());
  SendAllLayers(3);
  sender_->Commit(kId, kFailingRecord);
  network_.RunUntilIdle();
  const auto landed = Only<Receiver::Landed>(PollReceiver());
  ASSERT_THAT(landed, SizeIs(1));
  EXPECT_EQ(landed[0].generation, kGeneration + 1);
}

TEST_F(HandoffFailureTest, QuarantineThatLastsClosesThePeer) {
  OpenAndStart(4);
  network_.hold_landings = true;
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  receiver_->Abort(kId);
  network_.RunUntilIdle();
  AdvanceAndTick(absl::Seconds(1));
  EXPECT_THAT(PollReceiver(), IsEmpty());
  AdvanceAndTick(absl::Seconds(1));
  const auto received = PollReceiver();
  EXPECT_THAT(Only<PeerLost>(received), SizeIs(1));
  EXPECT_THAT(Only<Receiver::Quiesced>(received), SizeIs(1));
  EXPECT_EQ(receiver_->stats().peers_closed_by_force, 1u);
  const auto sent = PollSender();
  EXPECT_THAT(Only<PeerLost>(sent), SizeIs(1));
  EXPECT_THAT(Only<Sender::Quiesced>(sent), SizeIs(1));
  EXPECT_FALSE(sender_->IsReady(Incarnation{kDecode}));
}

TEST_F(HandoffFailureTest, SenderAbortFailsTheReceiver) {
  OpenAndStart(4);
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  sender_->Abort(kId, TransferOutcome::kCancelled);
  network_.RunUntilIdle();
  const auto sent = PollSender();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<Sender::Quiesced>(sent[0]));
  const auto received = PollReceiver();
  ASSERT_THAT(received, SizeIs(2));
  EXPECT_EQ(std::get<Receiver::Failed>(received[0]).outcome,
            TransferOutcome::kCancelled);
  EXPECT_TRUE(std::holds_alternative<Receiver::Quiesced>(received[1]));
}

TEST_F(HandoffFailureTest, SenderKeepsItsPagesUntilItsSendsEnd) {
  OpenAndStart(4);
  network_.hold_landings = true;
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  sender_->Abort(kId);
  EXPECT_THAT(PollSender(), IsEmpty());
  EXPECT_EQ(sender_->stats().transfers_quarantined, 1u);
  network_.hold_landings = false;
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Sender::Quiesced>(PollSender()), SizeIs(1));
}

TEST_F(HandoffFailureTest, SenderDiesMidTransfer) {
  OpenAndStart(4);
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  network_.hold_landings = true;
  sender_->SendLayer(kId, 1, 4);
  network_.RunUntilIdle();
  network_.Kill(sender_transport_.get());
  const auto received = PollReceiver();
  EXPECT_THAT(Only<PeerLost>(received), SizeIs(1));
  const auto failed = Only<Receiver::Failed>(received);
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].outcome, TransferOutcome::kPeerLost);
  ASSERT_THAT(Only<Receiver::Quiesced>(received), SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<Receiver::Quiesced>(received.back()));
  EXPECT_EQ(receiver_->stats().transfers_open, 0u);
  EXPECT_EQ(receiver_->stats().peers_ready, 0u);

  // Its next life is a new peer, and works.
  network_.hold_landings = false;
  auto transport = network_.CreateTransport(false);
  auto reborn = MakeSender(transport.get(), sender_memory_, kPrefill + 1);
  ASSERT_TRUE(reborn->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  ASSERT_TRUE(reborn->IsReady(Incarnation{kDecode}));
  auto open = OpenOf(target_);
  open.sender = Incarnation{kPrefill + 1};
  ASSERT_TRUE(receiver_->Open(open).ok());
  ExpectLandsFrom(*reborn);
}

TEST_F(HandoffFailureTest, SenderDiesBeforeItsFirstMessage) {
  OpenAndStart(4);
  network_.Kill(sender_transport_.get());
  // It may connect again.
  AdvanceAndTick(absl::Seconds(1.9));
  EXPECT_THAT(Only<Receiver::Failed>(PollReceiver()), IsEmpty());
  AdvanceAndTick(absl::Seconds(0.1));
  const auto failed = Only<Receiver::Failed>(PollReceiver());
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].outcome, TransferOutcome::kPeerLost);
}

TEST_F(HandoffFailureTest, ATransferThatHasNotBegunOutlivesAConnection) {
  OpenAndStart(4);
  network_.Kill(sender_transport_.get());
  network_.RunUntilIdle();
  AdvanceAndTick(absl::Seconds(1));
  // The same life, over another connection.
  auto transport = network_.CreateTransport(false);
  auto again = MakeSender(transport.get(), sender_memory_, kPrefill);
  ASSERT_TRUE(again->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  AdvanceAndTick(absl::Seconds(1.5));
  AdvanceAndTick(absl::Seconds(1.5));
  ExpectLandsFrom(*again);
}

TEST_F(HandoffFailureTest, ReceiverDiesMidTransfer) {
  OpenAndStart(4);
  network_.hold_landings = true;
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  sender_->SendLayer(kId, 1, 4);
  network_.Kill(receiver_transport_.get());
  network_.RunUntilIdle();
  const auto sent = PollSender();
  EXPECT_THAT(Only<PeerLost>(sent), SizeIs(1));
  ASSERT_THAT(Only<Sender::Failed>(sent), SizeIs(1));
  EXPECT_EQ(Only<Sender::Failed>(sent)[0].outcome, TransferOutcome::kPeerLost);
  EXPECT_THAT(Only<Sender::Quiesced>(sent), SizeIs(1));
  EXPECT_TRUE(std::holds_alternative<Sender::Quiesced>(sent.back()));
  EXPECT_EQ(sender_->Start(GrantOf(0, 1), source_, In(absl::Seconds(1))).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(HandoffFailureTest, LostAcknowledgementFailsAtTheDeadline) {
  OpenAndStart(2);
  network_.judge = [](ByteSpan header, bool) {
    const auto message = wire::Decode(header);
    const bool ack =
        message.ok() && std::holds_alternative<wire::CommitAck>(message->body);
    return ack ? FakeNetwork::Fate::kDrop : FakeNetwork::Fate::kDeliver;
  };
  SendAllLayers(2);
  sender_->Commit(kId, kFailingRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  EXPECT_THAT(PollSender(), IsEmpty());
  AdvanceAndTick(absl::Seconds(11));
  EXPECT_EQ(Only<Sender::Failed>(PollSender())[0].outcome,
            TransferOutcome::kDeadlineExceeded);
}

TEST_F(HandoffFailureTest, EndsWithTheLeaseOfWhoWantsIt) {
  lease_until_ = In(absl::Seconds(5));
  OpenAndStart(2);
  SendAllLayers(1);
  network_.RunUntilIdle();
  AdvanceAndTick(absl::Seconds(4));
  EXPECT_THAT(PollReceiver(), IsEmpty());
  EXPECT_THAT(PollSender(), IsEmpty());
  lease_until_ = In(absl::Seconds(5));  // renewed
  AdvanceAndTick(absl::Seconds(4));
  EXPECT_THAT(PollReceiver(), IsEmpty());
  EXPECT_THAT(PollSender(), IsEmpty());
  AdvanceAndTick(absl::Seconds(1));
  network_.RunUntilIdle();
  EXPECT_EQ(Only<Receiver::Failed>(PollReceiver())[0].outcome,
            TransferOutcome::kLeaseExpired);
  EXPECT_EQ(Only<Sender::Failed>(PollSender())[0].outcome,
            TransferOutcome::kLeaseExpired);
}

// As when the network is cut: nothing comes back, and no connection ends.
TEST_F(HandoffFailureTest, APeerThatGivesNothingBackIsClosed) {
  HandoffOptions options =
      Options(sender_memory_, v1::WORKER_ROLE_PREFILL, kPrefill + 1);
  options.stall_timeout = absl::Seconds(2);
  sender_.reset();
  sender_transport_ = network_.CreateTransport(/*listen=*/false);
  sender_ = *Sender::Create(sender_transport_.get(), options);
  ASSERT_TRUE(sender_->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  ASSERT_THAT(Only<PeerReady>(PollSender()), SizeIs(1));
  auto open = OpenOf({1, 2});
  open.sender = Incarnation{kPrefill + 1};
  open.deadline = In(absl::Hours(1));
  ASSERT_TRUE(receiver_->Open(open).ok());
  ASSERT_TRUE(
      sender_
          ->Start(GrantOf(0, 2), std::vector<BlockId>{3, 4}, In(absl::Hours(1)))
          .ok());
  // An idle peer owes nothing.
  AdvanceAndTick(absl::Seconds(10));
  EXPECT_THAT(PollSender(), IsEmpty());
  network_.judge = [](ByteSpan, bool) { return FakeNetwork::Fate::kHold; };
  SendAllLayers(2);
  AdvanceAndTick(absl::Milliseconds(20));
  AdvanceAndTick(absl::Seconds(1.5));
  EXPECT_THAT(PollSender(), IsEmpty());
  AdvanceAndTick(absl::Seconds(1));
  network_.RunUntilIdle();
  const auto events = PollSender();
  EXPECT_THAT(Only<PeerLost>(events), SizeIs(1));
  ASSERT_THAT(Only<Sender::Failed>(events), SizeIs(1));
  EXPECT_EQ(Only<Sender::Failed>(events)[0].outcome,
            TransferOutcome::kPeerLost);
  EXPECT_THAT(Only<Sender::Quiesced>(events), SizeIs(1));
}

TEST_F(HandoffFailureTest, EventsNobodyPollsStopNewTransfers) {
  HandoffOptions options =
      Options(receiver_memory_, v1::WORKER_ROLE_DECODE, 999);
  options.max_waiting_events = 3;
  auto transport = network_.CreateTransport(true);
  auto receiver = *Receiver::Create(transport.get(), options);
  for (uint64_t i = 1; i <= 3; ++i) {
    auto open = OpenOf({1});
    open.transfer = TransferId{i};
    ASSERT_TRUE(receiver->Open(open).ok());
    receiver->Abort(open.transfer);
  }
  auto open = OpenOf({1});
  EXPECT_EQ(receiver->Open(open).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(receiver->Poll(), SizeIs(3));
  EXPECT_TRUE(receiver->Open(open).ok());
}

TEST_F(HandoffFailureTest, DestroyingEitherSideEndsTheOther) {
  OpenAndStart(4);
  network_.hold_landings = true;
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  sender_.reset();
  const auto received = PollReceiver();
  EXPECT_THAT(Only<Receiver::Failed>(received), SizeIs(1));
  EXPECT_THAT(Only<Receiver::Quiesced>(received), SizeIs(1));
}

}  // namespace
}  // namespace baton::kv_transfer
