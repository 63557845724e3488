// The hand-off when all goes well, and what it does with messages that fit no
// transfer.
#include <random>

#include "tests/kv_transfer/handoff_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr CommitRecord kRecord{
    .first_token = 42, .next_token_index = 1, .num_tokens = 130};

class HandoffTest : public HandoffPairTest {};

TEST_F(HandoffTest, PairsAndSaysWho) {
  EXPECT_TRUE(sender_->IsReady(Incarnation{kDecode}));
  EXPECT_FALSE(sender_->IsReady(Incarnation{kDecode + 1}));
  EXPECT_EQ(sender_->stats().peers_ready, 1u);
  EXPECT_EQ(receiver_->stats().peers_ready, 1u);
  EXPECT_GE(sender_wakes_, 1);
  EXPECT_GE(receiver_wakes_, 1);
  // A second Pair to the same address is no news.
  EXPECT_TRUE(sender_->Pair(receiver_transport_->properties().address).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(PollSender(), IsEmpty());
}

TEST_F(HandoffTest, WholeTransferLandsBitForBit) {
  OpenAndStart(9);
  SendAllLayers(9);
  sender_->Commit(kId, kRecord);
  clock_.Advance(absl::Milliseconds(5));
  network_.RunUntilIdle();
  const absl::Time at = clock_.Now();

  // The worker was busy meanwhile.
  clock_.Advance(absl::Milliseconds(7));
  const auto received = PollReceiver();
  ASSERT_THAT(received, SizeIs(1));
  const auto& landed = std::get<Receiver::Landed>(received[0]);
  EXPECT_EQ(landed.at, at);
  EXPECT_EQ(landed.transfer, kId);
  EXPECT_EQ(landed.generation, kGeneration);
  EXPECT_EQ(landed.sender, Incarnation{kPrefill});
  EXPECT_EQ(landed.record.first_token, 42);
  EXPECT_EQ(landed.record.next_token_index, 1u);
  EXPECT_EQ(landed.record.num_tokens, 130u);
  EXPECT_EQ(landed.bytes, 9 * kLayers * kPage);
  EXPECT_EQ(landed.transport, "fake");
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
  EXPECT_TRUE(receiver_memory_.UntouchedExcept(target_));

  const auto sent = PollSender();
  ASSERT_THAT(sent, SizeIs(2));
  const auto& acked = std::get<Sender::Acked>(sent[0]);
  EXPECT_EQ(acked.transfer, kId);
  EXPECT_EQ(acked.bytes, landed.bytes);
  EXPECT_EQ(acked.exposed, absl::Milliseconds(5));
  EXPECT_EQ(acked.duration, absl::Milliseconds(5));
  EXPECT_EQ(acked.extents, 9 * kLayers);  // the blocks lie apart
  EXPECT_EQ(acked.transport, "fake");
  EXPECT_EQ(std::get<Sender::Quiesced>(sent[1]).transfer, kId);
  EXPECT_EQ(sender_->stats().bytes_sent, static_cast<uint64_t>(landed.bytes));
  EXPECT_EQ(receiver_->stats().bytes_received,
            static_cast<uint64_t>(landed.bytes));
  EXPECT_EQ(receiver_->stats().transfers_open, 0u);
}

TEST_F(HandoffTest, OnlyTheMissingBlocksGoOver) {
  // The receiver holds logical blocks 0..2 already.
  source_ = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t i = 0; i < 8; ++i) sender_memory_.Write(1, layer, i, i);
  }
  target_ = {30, 20, 10};
  ASSERT_TRUE(receiver_->Open(OpenOf(target_)).ok());
  ASSERT_TRUE(
      sender_->Start(GrantOf(3, 3), source_, In(absl::Seconds(10))).ok());
  SendAllLayers(2);
  SendAllLayers(8);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  const auto acked = Only<Sender::Acked>(PollSender());
  ASSERT_THAT(acked, SizeIs(1));
  EXPECT_EQ(acked[0].extents, kLayers);  // the blocks lie in a row
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 3, target_));
  EXPECT_TRUE(receiver_memory_.UntouchedExcept(target_));
}

TEST_F(HandoffTest, NothingMissingIsACommitAlone) {
  ASSERT_TRUE(receiver_->Open(OpenOf({})).ok());
  ASSERT_TRUE(
      sender_->Start(GrantOf(2, 0), {4, 5}, In(absl::Seconds(10))).ok());
  SendAllLayers(2);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  EXPECT_THAT(Only<Sender::Acked>(PollSender()), SizeIs(1));
}

// Chunks, layers, network order and faults that lose nothing, at random; many
// transfers at once.
TEST_F(HandoffTest, BlocksAreGrantedThenFilling) {
  OpenAndStart(9);
  EXPECT_EQ(receiver_->stats().blocks_granted, 9);
  EXPECT_EQ(receiver_->stats().blocks_filling, 0);
  sender_->SendLayer(kId, 0, 1);
  network_.RunUntilIdle();
  EXPECT_EQ(receiver_->stats().blocks_granted, 0);
  EXPECT_EQ(receiver_->stats().blocks_filling, 9);
  SendAllLayers(9);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_EQ(receiver_->stats().blocks_filling, 0);
}

TEST_F(HandoffTest, ATransferNearsItsEndWithTheLastPageOfALayer) {
  OpenAndStart(9);
  EXPECT_THAT(receiver_->NearEnd(), IsEmpty());
  for (int32_t layer = 0; layer < 2; ++layer) {
    sender_->SendLayer(kId, layer, 8);
  }
  network_.RunUntilIdle();
  EXPECT_THAT(receiver_->NearEnd(), IsEmpty());
  sender_->SendLayer(kId, 0, 9);
  network_.RunUntilIdle();
  EXPECT_THAT(receiver_->NearEnd(), ElementsAre(kId));
  SendAllLayers(9);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(receiver_->NearEnd(), ElementsAre(kId));  // nobody knows it yet
  EXPECT_THAT(PollReceiver(), SizeIs(1));
  EXPECT_THAT(receiver_->NearEnd(), IsEmpty());
}

TEST_F(HandoffTest, ATransferThatWasGivenUpNearsNoEnd) {
  OpenAndStart(9);
  sender_->SendLayer(kId, 0, 9);
  network_.RunUntilIdle();
  EXPECT_THAT(receiver_->NearEnd(), ElementsAre(kId));
  receiver_->Abort(kId);
  EXPECT_THAT(receiver_->NearEnd(), IsEmpty());
  network_.RunUntilIdle();
}

TEST_F(HandoffTest, AnyInterleavingIsBitwiseRight) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    network_.reorder = true;
    network_.judge = [&](ByteSpan, bool has_payload) {
      // Of messages, only payloads may come twice: an acknowledgement that does
      // finds no transfer, but a hello would be out of turn.
      return has_payload && random() % 4 == 0 ? FakeNetwork::Fate::kDuplicate
                                              : FakeNetwork::Fate::kDeliver;
    };
    struct Plan {
      TransferId id{};
      std::vector<BlockId> source, target;
      std::vector<int32_t> ready = std::vector<int32_t>(kLayers);
      bool committed = false;
    };
    std::vector<Plan> plans(3);
    std::vector<BlockId> free_here, free_there;
    for (BlockId b = 0; b < kPoolBlocks; ++b) {
      free_here.push_back(b);
      free_there.push_back(b);
    }
    std::shuffle(free_here.begin(), free_here.end(), random);
    std::shuffle(free_there.begin(), free_there.end(), random);
    const auto take = [](std::vector<BlockId>& from, size_t n) {
      std::vector<BlockId> out(from.end() - n, from.end());
      from.resize(from.size() - n);
      return out;
    };
    for (size_t p = 0; p < plans.size(); ++p) {
      Plan& plan = plans[p];
      const size_t n = 1 + random() % 12;
      plan.id = TransferId{seed * 10 + p};
      plan.source = take(free_here, n);
      plan.target = take(free_there, n);
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        for (size_t i = 0; i < n; ++i) {
          sender_memory_.Write(seed * 10 + p, layer, i, plan.source[i]);
        }
      }
      auto open = OpenOf(plan.target);
      open.transfer = plan.id;
      ASSERT_TRUE(receiver_->Open(open).ok());
      auto grant = GrantOf(0, n);
      grant.transfer = plan.id;
      ASSERT_TRUE(
          sender_->Start(grant, plan.source, In(absl::Seconds(10))).ok());
    }
    size_t committed = 0;
    while (committed < plans.size()) {
      Plan& plan = plans[random() % plans.size()];
      if (plan.committed) continue;
      const int32_t n = plan.source.size();
      const int32_t layer = random() % kLayers;
      plan.ready[layer] += random() % (n + 1);
      plan.ready[layer] = std::min(plan.ready[layer], n);
      sender_->SendLayer(plan.id, layer, plan.ready[layer]);
      if (std::all_of(plan.ready.begin(), plan.ready.end(),
                      [&](int32_t r) { return r == n; })) {
        sender_->Commit(plan.id, kRecord);
        plan.committed = true;
        ++committed;
      }
      for (int i = random() % 6; i > 0; --i) network_.Step();
    }
    network_.RunUntilIdle();
    EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(plans.size()));
    EXPECT_THAT(Only<Sender::Acked>(PollSender()), SizeIs(plans.size()));
    for (size_t p = 0; p < plans.size(); ++p) {
      EXPECT_TRUE(receiver_memory_.HoldsAll(seed * 10 + p, 0, plans[p].target));
    }
  }
}

TEST_F(HandoffTest, CommitBeforeTheLastPages) {
  OpenAndStart(6);
  // The commit overtakes everything.
  network_.judge = [](ByteSpan, bool has_payload) {
    return has_payload ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  };
  SendAllLayers(6);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(PollReceiver(), IsEmpty());
  network_.judge = nullptr;
  network_.Release();
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
}

TEST_F(HandoffTest, SendsAreBoundedPerPeer) {
  OpenAndStart(20);
  size_t on_wire = 0;
  network_.judge = [&](ByteSpan, bool has_payload) {
    on_wire += has_payload;
    return has_payload ? FakeNetwork::Fate::kHold : FakeNetwork::Fate::kDeliver;
  };
  // Each (layer, chunk) is a message of its own.
  for (int32_t ready = 1; ready <= 20; ++ready) {
    SendAllLayers(ready);
    network_.RunUntilIdle();
  }
  EXPECT_EQ(on_wire, FakeNetwork::kMaxSendsInFlight);
  network_.judge = nullptr;
  network_.Release();
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
}

TEST_F(HandoffTest, GrantsThatDoNotFitAreRefused) {
  const std::vector<BlockId> blocks = {0, 1, 2};
  const absl::Time deadline = In(absl::Seconds(1));
  auto grant = GrantOf(1, 3);
  EXPECT_EQ(sender_->Start(grant, blocks, deadline).code(),
            absl::StatusCode::kInvalidArgument);
  grant = GrantOf(-1, 1);
  EXPECT_EQ(sender_->Start(grant, blocks, deadline).code(),
            absl::StatusCode::kInvalidArgument);
  grant = GrantOf(0, 3);
  grant.receiver = Incarnation{999};
  const absl::Status unpaired = sender_->Start(grant, blocks, deadline);
  EXPECT_EQ(unpaired.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(unpaired.message()), HasSubstr("not paired"));
  grant = GrantOf(0, 3);
  EXPECT_TRUE(sender_->Start(grant, blocks, deadline).ok());
  EXPECT_EQ(sender_->Start(grant, blocks, deadline).code(),
            absl::StatusCode::kAlreadyExists);
}

TEST_F(HandoffTest, TransfersAreBounded) {
  HandoffOptions options =
      Options(receiver_memory_, v1::WORKER_ROLE_DECODE, 999);
  options.max_transfers = 2;
  auto transport = network_.CreateTransport(true);
  auto receiver = *Receiver::Create(transport.get(), options);
  auto open = OpenOf({1});
  open.transfer = TransferId{1};
  EXPECT_TRUE(receiver->Open(open).ok());
  open.transfer = TransferId{2};
  EXPECT_TRUE(receiver->Open(open).ok());
  open.transfer = TransferId{3};
  EXPECT_EQ(receiver->Open(open).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(HandoffTest, CallsOnAnEndedTransferDoNothing) {
  OpenAndStart(2);
  sender_->Abort(kId);
  network_.RunUntilIdle();
  PollSender();
  SendAllLayers(2);
  sender_->Commit(kId, kRecord);
  sender_->Abort(kId);
  receiver_->Abort(kId);
  network_.RunUntilIdle();
  EXPECT_THAT(PollSender(), IsEmpty());
}

TEST_F(HandoffTest, OpeningATransferTwiceIsABug) {
  ASSERT_TRUE(receiver_->Open(OpenOf({1})).ok());
  EXPECT_DEATH(receiver_->Open(OpenOf({2})).IgnoreError(),
               "is open or quarantined");
}

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
  const auto events = PollReceiver();
  EXPECT_THAT(Only<PeerLost>(events), SizeIs(1));
  EXPECT_EQ(Only<Receiver::Failed>(events)[0].outcome,
            TransferOutcome::kPeerLost);
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
