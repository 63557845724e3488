// Peers that say what no transport of ours says: they are closed, with a reason
// that names it, and nothing else happens.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/transports/nccl/nccl_peer.h"
#include "kv_transfer/transports/nccl/nccl_wire.h"
#include "kv_transfer/transports/socket_address.h"
#include "tests/kv_transfer/transports/nccl/nccl_pair.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;

// Speaks over the control transport by hand, and has a communicator of its own.
class Impostor final : public TransportHandler {
 public:
  Impostor(FakeNetwork& network, FakeFabric& fabric, bool listen)
      : control(network.CreateTransport(listen)),
        communicators_(fabric.CreateEnd()) {
    region = *control->RegisterRegion(absl::MakeSpan(memory), kNoDescriptor);
    control->Start(this);
  }
  ~Impostor() override {
    control->Stop();
    if (communicator == nullptr) return;
    communicator->Abort();
    EXPECT_TRUE(communicator->Poll().quiet);
  }

  void CreateCommunicator(int rank, const std::string& unique_id) {
    communicator = communicators_->Create(rank, unique_id, [] {});
  }
  void Say(const std::string& bytes) {
    ASSERT_TRUE(control->Send(peer, BytesOf(bytes), {}, 0).ok());
  }

  void OnPeerUp(PeerId id, const std::string&) override { peer = id; }
  void OnPeerDown(PeerId, const absl::Status&) override { ++downs; }
  void OnMessage(PeerId, ByteSpan bytes) override {
    heard.push_back(TextOf(bytes));
  }
  std::optional<Landing> OnPayload(PeerId, ByteSpan, uint64_t) override {
    return std::nullopt;
  }
  void OnLanded(PeerId, uint64_t, const absl::Status&) override {}
  void OnSent(PeerId, uint64_t, const absl::Status&) override {}
  void OnTick() override {}

  std::vector<std::byte> memory = std::vector<std::byte>(1000);
  std::unique_ptr<Transport> control;
  RegionId region{};
  PeerId peer{};
  std::vector<std::string> heard;
  int downs = 0;
  std::unique_ptr<Communicator> communicator;

 private:
  const std::unique_ptr<Communicators> communicators_;
};

class NcclImpostorTest : public ::testing::Test {
 protected:
  // Ours is rank `rank`; the impostor is the other one.
  void Begin(int rank) {
    NcclOptions options;
    options.clock = &clock_;
    options.max_sends_in_flight = 2;
    const bool listen = rank == 0;
    ours_ = std::make_unique<NcclEnd>(network_, fabric_, listen, options);
    impostor_ = std::make_unique<Impostor>(network_, fabric_, !listen);
    ours_->on_payload = [this](const std::string&, uint64_t bytes) {
      return Landing{{{ours_->region, 0, bytes}}, 1};
    };
    if (listen) {
      ASSERT_TRUE(
          impostor_->control->Connect(ours_->control->properties().address)
              .ok());
    } else {
      auto id = ours_->transport->Connect(
          kNcclScheme + impostor_->control->properties().address);
      ASSERT_TRUE(id.ok());
      ours_->peer = *id;
    }
    network_.RunUntilIdle();
  }
  void BeginAndComeUp(int rank) {
    Begin(rank);
    if (rank == 0) {
      ASSERT_EQ(impostor_->heard.size(), 1u);
      const auto join = nccl_wire::Decode(BytesOf(impostor_->heard[0]));
      ASSERT_TRUE(join.ok());
      impostor_->CreateCommunicator(
          1, TextOf(std::get<nccl_wire::Join>(*join).unique_id));
    } else {
      impostor_->CreateCommunicator(0, "");
      unique_id_ = impostor_->communicator->Poll().unique_id;
      impostor_->Say(nccl_wire::EncodeJoin(unique_id_));
    }
    network_.RunUntilIdle();
    EXPECT_TRUE(impostor_->communicator->Poll().ready);
    network_.RunUntilIdle();
    impostor_->Say(nccl_wire::EncodeReady());
    network_.RunUntilIdle();
    ASSERT_EQ(ours_->Count("up"), 1);
  }
  // Has the impostor say it; why ours closed it.
  std::string WhyClosed(const std::vector<std::string>& messages) {
    for (const std::string& message : messages) {
      impostor_->Say(message);
      network_.RunUntilIdle();
    }
    EXPECT_EQ(impostor_->downs, 1);
    EXPECT_EQ(ours_->transport->Send(ours_->peer, BytesOf("m"), {}, 1).code(),
              absl::StatusCode::kUnavailable);
    return std::string(ours_->why.message());
  }

  HandMovedClock clock_;
  FakeNetwork network_;
  FakeFabric fabric_;
  std::unique_ptr<NcclEnd> ours_;
  std::unique_ptr<Impostor> impostor_;
  std::string unique_id_;  // when the impostor is rank 0
};

std::string Offer(uint64_t number) {
  return nccl_wire::EncodeOffer(number, {100}, "h");
}

TEST_F(NcclImpostorTest, ThatDoesNotSpeakTheProtocol) {
  BeginAndComeUp(0);
  EXPECT_THAT(WhyClosed({"hello"}), HasSubstr("malformed"));
}

TEST_F(NcclImpostorTest, ThatSpeaksBeforeItIsUp) {
  Begin(0);
  impostor_->Say(nccl_wire::EncodeMessage("m"));
  network_.RunUntilIdle();
  EXPECT_EQ(impostor_->downs, 1);
  EXPECT_EQ(ours_->lines.size(), 0u);
  EXPECT_EQ(fabric_.alive(), 0);
}

TEST_F(NcclImpostorTest, ThatIsSilent) {
  Begin(1);
  clock_.now += absl::Seconds(21);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_EQ(impostor_->downs, 1);
  EXPECT_THAT(ours_->why.message(), HasSubstr("did not say which to join"));
  EXPECT_EQ(fabric_.created(), 0);
}

TEST_F(NcclImpostorTest, ThatIsNotReady) {
  Begin(1);
  impostor_->CreateCommunicator(0, "");
  impostor_->Say(
      nccl_wire::EncodeJoin(impostor_->communicator->Poll().unique_id));
  network_.RunUntilIdle();
  clock_.now += absl::Seconds(21);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(ours_->why.message(), HasSubstr("the peer's is not ready"));
}

TEST_F(NcclImpostorTest, ThatNamesACommunicatorThatDoesNotExist) {
  Begin(1);
  impostor_->Say(nccl_wire::EncodeJoin("no such thing"));
  network_.RunUntilIdle();
  EXPECT_EQ(fabric_.alive(), 1);
  clock_.now += absl::Seconds(21);
  network_.Tick();
  network_.RunUntilIdle();
  EXPECT_THAT(ours_->why.message(), HasSubstr("NCCL has not created it"));
  EXPECT_EQ(fabric_.alive(), 0);
}

TEST_F(NcclImpostorTest, ThatSaysTwiceWhatToJoin) {
  BeginAndComeUp(1);
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeJoin(unique_id_)}),
              HasSubstr("unasked which communicator"));
}

TEST_F(NcclImpostorTest, ThatTellsRankZeroWhatToJoin) {
  BeginAndComeUp(0);
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeJoin("id")}),
              HasSubstr("unasked which communicator"));
}

TEST_F(NcclImpostorTest, ThatAnswersWhatWasNotAsked) {
  for (const std::string& answer :
       {nccl_wire::EncodeRefuse(1), nccl_wire::EncodeAccept(1, 0, {100}),
        nccl_wire::EncodeTurn(1, 1)}) {
    BeginAndComeUp(0);
    EXPECT_THAT(WhyClosed({answer}), HasSubstr("fits nothing"));
    impostor_.reset();
    ours_.reset();
  }
}

TEST_F(NcclImpostorTest, ThatOffersANumberTwice) {
  BeginAndComeUp(0);
  EXPECT_THAT(WhyClosed({Offer(5), Offer(5)}), HasSubstr("offer 5"));
  EXPECT_EQ(ours_->Count("not landed 1"), 1);
}

TEST_F(NcclImpostorTest, ThatOffersTooMuch) {
  BeginAndComeUp(0);
  std::vector<std::string> offers;
  for (uint64_t i = 1; i <= NcclPeer::kMaxLandings + 1; ++i) {
    offers.push_back(Offer(i));
  }
  EXPECT_THAT(WhyClosed(offers), HasSubstr("more payloads than"));
  EXPECT_EQ(ours_->Count("not landed 1"),
            static_cast<int>(NcclPeer::kMaxLandings));
}

TEST_F(NcclImpostorTest, ThatAcceptsAnotherSize) {
  BeginAndComeUp(0);
  ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 7).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeAccept(1, 0, {99})}),
              HasSubstr("acceptance 1"));
  EXPECT_EQ(ours_->Count("not sent 7"), 1);
}

TEST_F(NcclImpostorTest, ThatAcceptsTwice) {
  BeginAndComeUp(0);
  ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 7).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeAccept(1, 0, {100}),
                         nccl_wire::EncodeAccept(1, 0, {100})}),
              HasSubstr("acceptance 1"));
  EXPECT_EQ(ours_->Count("not sent 7"), 1);
}

TEST_F(NcclImpostorTest, ThatRefusesWhatItAccepted) {
  BeginAndComeUp(0);
  ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 7).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeAccept(1, 0, {60, 40}),
                         nccl_wire::EncodeRefuse(1)}),
              HasSubstr("refusal 1"));
}

TEST_F(NcclImpostorTest, ThatGivesNoTurn) {
  BeginAndComeUp(1);
  ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 7).ok());
  network_.RunUntilIdle();
  EXPECT_THAT(WhyClosed({nccl_wire::EncodeAccept(1, 0, {100})}),
              HasSubstr("turn 0"));
  EXPECT_EQ(ours_->Count("not sent 7"), 1);
  EXPECT_EQ(fabric_.posted(), 0);
}

TEST_F(NcclImpostorTest, ThatGivesATurnTwice) {
  BeginAndComeUp(1);
  for (const uint64_t turn : {uint64_t{1}, uint64_t{3}}) {
    if (turn == 3) BeginAndComeUp(1);
    ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 7).ok());
    ASSERT_TRUE(ours_->Send("p", {{ours_->region, 0, 100}}, 8).ok());
    network_.RunUntilIdle();
    EXPECT_THAT(WhyClosed({nccl_wire::EncodeAccept(1, turn, {100}),
                           nccl_wire::EncodeAccept(2, turn, {100})}),
                HasSubstr(absl::StrCat("turn ", turn)));
    EXPECT_EQ(ours_->Count("not sent 7"), 1);
    EXPECT_EQ(ours_->Count("not sent 8"), 1);
    impostor_.reset();
    ours_.reset();
  }
}

TEST_F(NcclImpostorTest, ThatGivesAPayloadTwoTurns) {
  BeginAndComeUp(1);
  EXPECT_THAT(WhyClosed({Offer(1), nccl_wire::EncodeTurn(1, 1),
                         nccl_wire::EncodeTurn(1, 2)}),
              HasSubstr("turn 1"));
  EXPECT_EQ(ours_->Count("not landed 1"), 1);
}

TEST_F(NcclImpostorTest, ThatSendsPayloadsOverTheControlTransport) {
  BeginAndComeUp(0);
  ASSERT_TRUE(impostor_->control
                  ->Send(impostor_->peer, BytesOf("p"),
                         std::vector<Extent>{{impostor_->region, 0, 100}}, 0)
                  .ok());
  network_.RunUntilIdle();
  EXPECT_THAT(WhyClosed({}), HasSubstr("over the control transport"));
}

}  // namespace
}  // namespace baton::kv_transfer
