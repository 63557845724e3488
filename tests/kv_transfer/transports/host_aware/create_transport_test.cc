#include "kv_transfer/transports/host_aware/create_transport.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/socket_address.h"
#include "tests/kv_transfer/transports/local/local_node.h"
#include "tests/support/fake_communicator.h"
#include "tests/support/test_certificates.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

uint16_t Port(const Transport& transport) {
  return PortOf(ParseSocketAddress(transport.properties().address)->storage);
}

TEST(CreateTransportTest, MakesEachKind) {
  for (const auto& [kind, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"ucx", "ucx/tcp"},
           {"local", "local/memfd"},
           {"tcp", "tcp"},
           {"auto", "local/memfd+tcp+ucx/tcp"}}) {
    auto transport = CreateTransport(kind, {});
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->properties().name, name);
    EXPECT_NE(Port(**transport), 0);
  }
  EXPECT_EQ(CreateTransport("carrier pigeon", {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CreateTransportTest, MakesOneOverNcclOfCommunicators) {
  FakeFabric fabric;
  auto transport = CreateTransport(
      "nccl", {}, [&]() -> absl::StatusOr<std::unique_ptr<Communicators>> {
        return fabric.CreateEnd();
      });
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->properties().name, "nccl");
  EXPECT_THAT((*transport)->properties().address, StartsWith("nccl:"));
  const auto none = CreateTransport(
      "nccl", {}, []() -> absl::StatusOr<std::unique_ptr<Communicators>> {
        return absl::FailedPreconditionError("no such device");
      });
  EXPECT_EQ(none.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(none.status().message(), HasSubstr("no such device"));
  EXPECT_EQ(CreateTransport("nccl", {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(CreateTransportTest, MemoryOfADeviceIsForUcxAlone) {
  for (const char* kind : {"local", "tcp", "auto"}) {
    const auto transport = CreateTransport(kind, {.memory = UcxMemory::kCuda});
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(transport.status().message(), HasSubstr(kind));
  }
}

// What is to be encrypted goes by no transport that does not.
TEST(CreateTransportTest, WithTlsThereIsNoUcx) {
  test::ClusterMembers members;
  const TcpTls required = {members.Files()};
  for (const auto& [kind, name] :
       std::vector<std::pair<std::string, std::string>>{
           {"local", "local/memfd"},
           {"tcp", "tcp/tls"},
           {"auto", "local/memfd+tcp/tls"}}) {
    const auto transport = CreateTransport(kind, {}, nullptr, required);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->properties().name, name);
  }
  for (const char* kind : {"ucx", "nccl"}) {
    const auto transport = CreateTransport(kind, {}, nullptr, required);
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(transport.status().message(), HasSubstr(kind));
  }
  const TcpTls taken = {.files = members.Files(), .required = false};
  EXPECT_EQ((*CreateTransport("auto", {}, nullptr, taken))->properties().name,
            "local/memfd+tcp+ucx/tcp");
  EXPECT_TRUE(CreateTransport("ucx", {}, nullptr, taken).ok());
}

// Another way, which leads nowhere, does not hide why.
TEST(CreateTransportTest, SaysThatThePeerWantsTls) {
  test::ClusterMembers members;
  Journal at_server, at_client;
  auto server = CreateTransport("tcp", {}, nullptr, {members.Files()});
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Start(&at_server);
  auto client = CreateTransport("auto", {.listen = false});
  ASSERT_TRUE(client.ok()) << client.status();
  (*client)->Start(&at_client);
  ASSERT_TRUE((*client)->Connect((*server)->properties().address).ok());
  ASSERT_TRUE(at_client.Await("down"));
  EXPECT_THAT(std::string(at_client.why().message()),
              HasSubstr("the peer takes KV over TLS only"));
  (*client)->Stop();
  (*server)->Stop();
}

TEST(CreateTransportTest, SaysWhatUcxSays) {
  auto transport = CreateTransport("auto", {.tls = "nonsense"});
  EXPECT_THAT(std::string(transport.status().message()),
              HasSubstr("'nonsense'"));
}

TEST(CreateTransportTest, DoesWithoutMemoryWhereTheNameIsTaken) {
  uint16_t port = 0;
  {
    auto probe = CreateTransport("ucx", {});
    ASSERT_TRUE(probe.ok());
    port = Port(**probe);
  }
  const auto taken = ListenLocally("127.0.0.1:" + std::to_string(port));
  ASSERT_TRUE(taken.ok()) << taken.status();
  auto transport = CreateTransport("auto", {.port = port});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->properties().name, "tcp+ucx/tcp");
  EXPECT_EQ(CreateTransport("local", {.port = port}).status().code(),
            absl::StatusCode::kAlreadyExists);
}

// Somebody on this host listens for the address and then hangs up, as one does
// who is full or speaks another version.
TEST(CreateTransportTest, FallsBackWhenTheLocalPeerHangsUp) {
  Journal at_server, at_client;
  auto server = CreateTransport("ucx", {});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&at_server);
  const std::string& address = (*server)->properties().address;
  const auto rude = ListenLocally(address);
  ASSERT_TRUE(rude.ok()) << rude.status();
  auto client = CreateTransport("auto", {.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&at_client);
  const auto peer = (*client)->Connect(address);
  ASSERT_TRUE(peer.ok());
  pollfd visitors = {rude->get(), POLLIN, 0};
  ASSERT_EQ(poll(&visitors, 1, 20000), 1);
  { const ScopedFd visitor(accept(rude->get(), nullptr, nullptr)); }
  ASSERT_TRUE(at_client.Await("up"));
  EXPECT_EQ((*client)->PeerProperties(*peer).name, "ucx/tcp");
  EXPECT_TRUE(at_server.Await("up"));
  (*client)->Stop();
  (*server)->Stop();
}

// Who listens takes peers of each kind at one port, and payloads from them.
TEST(CreateTransportTest, EachKindConnectsToAuto) {
  for (const auto& [kind, by] :
       std::vector<std::pair<std::string, std::string>>{
           {"local", "local/memfd"}, {"tcp", "tcp"}, {"ucx", "ucx/tcp"}}) {
    constexpr size_t kBytes = 100'000;
    const SharedMemory from = *SharedMemory::Create(kBytes, "a test");
    std::vector<std::byte> to(kBytes);
    for (size_t i = 0; i < kBytes; ++i) {
      from.memory()[i] = static_cast<std::byte>(i * 7 + i / 251);
    }
    Journal at_server, at_client;
    auto server = CreateTransport("auto", {});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto landing =
        (*server)->RegisterRegion(absl::MakeSpan(to), kNoDescriptor);
    ASSERT_TRUE(landing.ok());
    at_server.on_payload = [&](uint64_t bytes) {
      return Landing{{{*landing, 0, bytes}}, 1};
    };
    (*server)->Start(&at_server);
    auto client = CreateTransport(kind, {.listen = false});
    ASSERT_TRUE(client.ok()) << client.status();
    const auto region =
        (*client)->RegisterRegion(from.memory(), from.descriptor());
    ASSERT_TRUE(region.ok());
    (*client)->Start(&at_client);
    const auto peer = (*client)->Connect((*server)->properties().address);
    ASSERT_TRUE(peer.ok()) << peer.status();
    ASSERT_TRUE(at_client.Await("up")) << kind;
    ASSERT_TRUE(at_server.Await("up")) << kind;
    EXPECT_EQ((*server)->PeerProperties(at_server.peer()).name, by);
    ASSERT_TRUE(
        (*client)->Send(*peer, AsBytes("kv"), {{*region, 0, kBytes}}, 1).ok());
    ASSERT_TRUE(at_server.Await("landed"));
    EXPECT_TRUE(std::equal(to.begin(), to.end(), from.memory().begin()));
    ASSERT_TRUE((*server)->Send(at_server.peer(), AsBytes("back"), {}, 1).ok());
    ASSERT_TRUE(at_client.Await("message back"));
    (*client)->Stop();
    (*server)->Stop();
  }
}

// TCP's listener passes those on to UCX that speak its words. Whoever is at
// either door, or between them, when the transport stops hears that it is gone,
// as do those that are in.
TEST(CreateTransportTest, StopsWhileVisitorsArePassedOn) {
  constexpr int kVisitors = 6;
  for (int inside = 0; inside <= kVisitors; inside += 2) {
    Journal at_server;
    auto server = CreateTransport("auto", {});
    ASSERT_TRUE(server.ok()) << server.status();
    (*server)->Start(&at_server);
    std::vector<std::unique_ptr<Journal>> at_visitors;
    std::vector<std::unique_ptr<Transport>> visitors;
    for (int i = 0; i < kVisitors; ++i) {
      // Longer than the test waits.
      auto visitor = CreateTransport(
          "ucx", {.listen = false, .connect_timeout = absl::Seconds(60)});
      ASSERT_TRUE(visitor.ok()) << visitor.status();
      visitors.push_back(*std::move(visitor));
      at_visitors.push_back(std::make_unique<Journal>());
      visitors.back()->Start(at_visitors.back().get());
    }
    for (const auto& visitor : visitors) {
      ASSERT_TRUE(visitor->Connect((*server)->properties().address).ok());
    }
    if (inside > 0) {
      ASSERT_TRUE(at_server.Await("up", inside));
    }
    (*server)->Stop();
    EXPECT_EQ(at_server.Count("up"), at_server.Count("down"));
    EXPECT_GE(at_server.Count("up"), inside);
    for (int i = 0; i < kVisitors; ++i) {
      EXPECT_TRUE(at_visitors[i]->Await("down")) << i << " of " << inside;
      visitors[i]->Stop();
    }
  }
}

// Memory that is not shared goes over TCP, and by UCX where that is more than
// TCP by another way.
TEST(CreateTransportTest, AutoPrefersTcpUnlessUcxHasMore) {
  for (const auto& [tls, by] : std::vector<std::pair<std::string, std::string>>{
           {"tcp", "tcp"}, {"tcp,self", "ucx/tcp,self"}}) {
    std::vector<std::byte> memory(4096);
    Journal at_server, at_client;
    auto server = CreateTransport("auto", {.tls = tls});
    ASSERT_TRUE(server.ok()) << server.status();
    (*server)->Start(&at_server);
    auto client = CreateTransport("auto", {.listen = false, .tls = tls});
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_TRUE(
        (*client)->RegisterRegion(absl::MakeSpan(memory), kNoDescriptor).ok());
    (*client)->Start(&at_client);
    const auto peer = (*client)->Connect((*server)->properties().address);
    ASSERT_TRUE(peer.ok()) << peer.status();
    ASSERT_TRUE(at_client.Await("up")) << tls;
    EXPECT_EQ((*client)->PeerProperties(*peer).name, by);
    (*client)->Stop();
    (*server)->Stop();
  }
}

// Where UCX is preferred, and nobody there speaks it.
TEST(CreateTransportTest, TcpIsTakenWhereUcxThatIsPreferredGivesUp) {
  std::vector<std::byte> memory(4096);
  Journal at_server, at_client;
  auto server = CreateTransport("tcp", {});
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Start(&at_server);
  auto client = CreateTransport("auto", {.listen = false,
                                         .tls = "tcp,self",
                                         .connect_timeout = absl::Seconds(1)});
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE(
      (*client)->RegisterRegion(absl::MakeSpan(memory), kNoDescriptor).ok());
  (*client)->Start(&at_client);
  const auto peer = (*client)->Connect((*server)->properties().address);
  ASSERT_TRUE(peer.ok()) << peer.status();
  ASSERT_TRUE(at_client.Await("up"));
  EXPECT_EQ((*client)->PeerProperties(*peer).name, "tcp");
  ASSERT_TRUE(at_server.Await("up"));
  ASSERT_TRUE((*client)->Send(*peer, AsBytes("kv"), {}, 1).ok());
  EXPECT_TRUE(at_server.Await("message kv"));
  (*client)->Stop();
  (*server)->Stop();
}

}  // namespace
}  // namespace baton::kv_transfer
