// The choice between two transports, on fakes that do one thing at a time.
#include "kv_transfer/transports/host_aware/host_aware_transport.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/transports/local/local_node.h"
#include "tests/support/fake_transport.h"

namespace baton::kv_transfer {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Not opened by a fake.
constexpr int kSomeDescriptor = 0;

class HostAwareTransportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto local = near_.CreateTransport(/*listen=*/false);
    auto remote = far_.CreateTransport(/*listen=*/false);
    local_ = local.get();
    remote_ = remote.get();
    client_ = MakeHostAwareTransport(std::move(local), std::move(remote));
  }
  void TearDown() override { client_->Stop(); }

  void Start(int descriptor = kSomeDescriptor) {
    region_ = *client_->RegisterRegion(absl::MakeSpan(memory_), descriptor);
    client_->Start(&journal_);
  }
  void Run() {
    near_.RunUntilIdle();
    far_.RunUntilIdle();
    near_.RunUntilIdle();
  }

  std::vector<std::byte> memory_ = std::vector<std::byte>(4096);
  FakeNetwork near_, far_;
  Journal journal_, near_journal_, far_journal_;
  Transport *local_ = nullptr, *remote_ = nullptr;
  std::unique_ptr<Transport> client_;
  RegionId region_{};
};

TEST_F(HostAwareTransportTest, PrefersTheFirst) {
  auto near = near_.CreateTransport(true);
  auto far = far_.CreateTransport(true);
  ASSERT_EQ(near->properties().address, far->properties().address);
  near->Start(&near_journal_);
  far->Start(&far_journal_);
  Start();
  const auto peer = client_->Connect(near->properties().address);
  ASSERT_TRUE(peer.ok());
  Run();
  EXPECT_THAT(near_journal_.lines(), ElementsAre("up"));
  EXPECT_THAT(far_journal_.lines(), IsEmpty());
  EXPECT_EQ(&client_->PeerProperties(*peer), &local_->properties());
  ASSERT_TRUE(client_->Send(*peer, AsBytes("m"), {}, 5).ok());
  Run();
  EXPECT_THAT(near_journal_.lines(), Contains("message m"));
  EXPECT_THAT(journal_.lines(), ElementsAre("up", "sent 5"));
}

// One that hangs is not hidden by the other.
TEST_F(HostAwareTransportTest, AllTickedWhenBothDid) {
  int all = 0;
  journal_.on_tick = [&] { all += client_->AllTicked(); };
  Start();
  near_.Tick(local_);
  near_.Tick(local_);
  EXPECT_EQ(all, 0);
  far_.Tick(remote_);
  EXPECT_EQ(all, 1);
  far_.Tick(remote_);
  EXPECT_EQ(all, 1);
  near_.Tick(local_);
  EXPECT_EQ(all, 2);
}

TEST_F(HostAwareTransportTest, FallsBackUnderTheSameName) {
  auto far = far_.CreateTransport(true);
  far->Start(&far_journal_);
  Start();
  const auto peer = client_->Connect(far->properties().address);
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(client_->Send(*peer, AsBytes("early"), {}, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("up"));
  EXPECT_EQ(journal_.peer(), *peer);
  EXPECT_EQ(&client_->PeerProperties(*peer), &remote_->properties());
  ASSERT_TRUE(client_->Send(*peer, AsBytes("m"), {}, 5).ok());
  Run();
  EXPECT_THAT(far_journal_.lines(), ElementsAre("up", "message m"));
  client_->ClosePeer(*peer);
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("up", "sent 5", "down"));
  EXPECT_EQ(client_->Send(*peer, AsBytes("late"), {}, 1).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(HostAwareTransportTest, TellsOnceThatNobodyIsThere) {
  Start();
  ASSERT_TRUE(client_->Connect("fake:1").ok());
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("down"));
}

TEST_F(HostAwareTransportTest, MemoryThatIsNotSharedGoesByTheSecond) {
  auto near = near_.CreateTransport(true);
  auto far = far_.CreateTransport(true);
  near->Start(&near_journal_);
  far->Start(&far_journal_);
  Start(kNoDescriptor);
  ASSERT_TRUE(client_->Connect(far->properties().address).ok());
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("up"));
  EXPECT_THAT(near_journal_.lines(), IsEmpty());
  EXPECT_THAT(far_journal_.lines(), ElementsAre("up"));
}

TEST_F(HostAwareTransportTest, ClosedWhileItConnects) {
  auto far = far_.CreateTransport(true);
  far->Start(&far_journal_);
  Start();
  const auto peer = client_->Connect(far->properties().address);
  ASSERT_TRUE(peer.ok());
  client_->ClosePeer(*peer);
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("down"));
  EXPECT_THAT(far_journal_.lines(), IsEmpty());
}

TEST_F(HostAwareTransportTest, StoppedWhileItConnects) {
  auto far = far_.CreateTransport(true);
  far->Start(&far_journal_);
  Start();
  ASSERT_TRUE(client_->Connect(far->properties().address).ok());
  client_->Stop();
  Run();
  EXPECT_THAT(journal_.lines(), ElementsAre("down"));
  EXPECT_FALSE(client_->Connect(far->properties().address).ok());
}

TEST_F(HostAwareTransportTest, PeersOfBothHaveNamesOfTheirOwn) {
  // The second address exists only far away.
  auto near = near_.CreateTransport(true);
  auto far = far_.CreateTransport(true);
  auto other = far_.CreateTransport(true);
  near->Start(&near_journal_);
  far->Start(&far_journal_);
  other->Start(&far_journal_);
  Start();
  const auto first = client_->Connect(near->properties().address);
  const auto second = client_->Connect(other->properties().address);
  ASSERT_TRUE(first.ok() && second.ok());
  Run();
  EXPECT_NE(*first, *second);
  EXPECT_EQ(journal_.Count("up"), 2);
  EXPECT_EQ(&client_->PeerProperties(*first), &local_->properties());
  EXPECT_EQ(&client_->PeerProperties(*second), &remote_->properties());
  ASSERT_TRUE(client_->Send(*first, AsBytes("1"), {}, 1).ok());
  ASSERT_TRUE(client_->Send(*second, AsBytes("2"), {}, 2).ok());
  Run();
  EXPECT_THAT(near_journal_.lines(), ElementsAre("up", "message 1"));
  EXPECT_THAT(far_journal_.lines(), ElementsAre("up", "message 2"));
}

TEST_F(HostAwareTransportTest, WithoutMemoryAllGoesByTheFirstThatAnswers) {
  auto first = near_.CreateTransport(/*listen=*/false);
  auto second = far_.CreateTransport(/*listen=*/false);
  const Transport* const raw_first = first.get();
  const Transport* const raw_second = second.get();
  auto client = MakeFallbackTransport(std::move(first), std::move(second),
                                      Silence::kOfBoth);
  ASSERT_TRUE(
      client->RegisterRegion(absl::MakeSpan(memory_), kNoDescriptor).ok());
  client->Start(&journal_);
  auto near = near_.CreateTransport(true);
  auto far = far_.CreateTransport(true);
  auto other = far_.CreateTransport(true);
  near->Start(&near_journal_);
  far->Start(&far_journal_);
  other->Start(&far_journal_);
  const auto by_first = client->Connect(near->properties().address);
  const auto by_second = client->Connect(other->properties().address);
  ASSERT_TRUE(by_first.ok() && by_second.ok());
  Run();
  EXPECT_EQ(&client->PeerProperties(*by_first), &raw_first->properties());
  EXPECT_EQ(&client->PeerProperties(*by_second), &raw_second->properties());
  client->Stop();
  Start();
}

TEST_F(HostAwareTransportTest, PromisesTheSmallerOfEachLimit) {
  const TransportProperties& both = client_->properties();
  EXPECT_EQ(both.name, "fake+fake");
  EXPECT_EQ(both.max_payload_bytes, FakeNetwork::kMaxPayloadBytes);
  EXPECT_EQ(both.max_sends_in_flight, FakeNetwork::kMaxSendsInFlight);
  EXPECT_TRUE(both.detects_peer_death);
  Start();
}

}  // namespace
}  // namespace baton::kv_transfer
