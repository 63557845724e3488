// The hand-off when all goes well.
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

class ReportedLayersTest : public HandoffPairTest {
 protected:
  ReportedLayersTest() { report_layers_ = true; }

  std::vector<int32_t> Layers(const std::vector<Receiver::Event>& events) {
    std::vector<int32_t> layers;
    for (const auto& layer : Only<Receiver::LayerLanded>(events)) {
      EXPECT_EQ(layer.transfer, kId);
      EXPECT_EQ(layer.generation, kGeneration);
      layers.push_back(layer.layer);
    }
    return layers;
  }
};

TEST_F(ReportedLayersTest, EachOnceWhenAllOfItIsThere) {
  OpenAndStart(9);
  sender_->SendLayer(kId, 2, 9);
  sender_->SendLayer(kId, 1, 4);
  network_.RunUntilIdle();
  EXPECT_THAT(Layers(PollReceiver()), ElementsAre(2));
  sender_->SendLayer(kId, 1, 9);
  network_.RunUntilIdle();
  EXPECT_THAT(Layers(PollReceiver()), ElementsAre(1));
  sender_->SendLayer(kId, 0, 9);
  sender_->SendLayer(kId, 3, 9);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  const auto events = PollReceiver();
  EXPECT_THAT(Layers(events), ::testing::UnorderedElementsAre(0, 3));
  // Before the word that all of it is verified.
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_TRUE(std::holds_alternative<Receiver::Landed>(events.back()));
}

TEST_F(ReportedLayersTest, NoneOfATransferThatEnded) {
  OpenAndStart(9);
  sender_->SendLayer(kId, 0, 4);
  network_.RunUntilIdle();
  receiver_->Abort(kId);
  sender_->SendLayer(kId, 0, 9);
  network_.RunUntilIdle();
  EXPECT_THAT(Layers(PollReceiver()), IsEmpty());
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

// Blocks of the sender's that do not lie in a row go by themselves.
class RunsTest : public HandoffPairTest {
 protected:
  RunsTest() { network_.prefers_runs = true; }
};

TEST_F(RunsTest, AMessageIsOneRun) {
  source_ = {4, 5, 6, 20, 21, 3, 30};
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    for (int32_t i = 0; i < 7; ++i) {
      sender_memory_.Write(1, layer, i, source_[i]);
    }
  }
  target_ = {1, 2, 11, 12, 13, 14, 15};
  ASSERT_TRUE(receiver_->Open(OpenOf(target_)).ok());
  ASSERT_TRUE(
      sender_->Start(GrantOf(0, 7), source_, In(absl::Seconds(10))).ok());
  int payloads = 0;
  network_.judge = [&payloads](ByteSpan, bool has_payload) {
    payloads += has_payload;
    return FakeNetwork::Fate::kDeliver;
  };
  SendAllLayers(7);
  sender_->Commit(kId, kRecord);
  network_.RunUntilIdle();
  EXPECT_THAT(Only<Receiver::Landed>(PollReceiver()), SizeIs(1));
  const auto acked = Only<Sender::Acked>(PollSender());
  ASSERT_THAT(acked, SizeIs(1));
  EXPECT_EQ(payloads, 4 * kLayers);
  EXPECT_EQ(acked[0].extents, 4 * kLayers);
  EXPECT_TRUE(receiver_memory_.HoldsAll(1, 0, target_));
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

}  // namespace
}  // namespace baton::kv_transfer
