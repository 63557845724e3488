// What is particular to the local transport: its options, its errors, and which
// memory it sends from.
#include "kv_transfer/transports/local/local_transport.h"

#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/socket_address.h"
#include "tests/kv_transfer/transports/local/local_node.h"
#include "tests/support/own_loopback.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;

// A name only; no other process uses it.
std::string OwnAddress() { return test::OwnLoopback() + ":1"; }

TEST(LocalTransportTest, AddressIsANameOnThisHost) {
  auto transport = CreateLocalTransport({});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_THAT((*transport)->properties().address, HasSubstr("127.0.0.1:"));
  EXPECT_EQ((*transport)->properties().name, "local/memfd");
  // Below what is given to those who take any: nobody has it by chance.
  const auto port = static_cast<uint16_t>(1024 + getpid() % 30000);
  auto v6 = CreateLocalTransport({.host = "::1", .port = port});
  ASSERT_TRUE(v6.ok()) << v6.status();
  EXPECT_EQ((*v6)->properties().address, absl::StrCat("[::1]:", port));
}

TEST(LocalTransportTest, NameInUseIsNamed) {
  // Nobody takes it while it is free for a moment.
  const std::string host = test::OwnLoopback();
  auto first = CreateLocalTransport({.host = host});
  ASSERT_TRUE(first.ok());
  const std::string address = (*first)->properties().address;
  const uint16_t port = PortOf(ParseSocketAddress(address)->storage);
  auto second = CreateLocalTransport({.host = host, .port = port});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(address));
  // Free ones are found past it, and it is free again once the first is gone.
  EXPECT_TRUE(CreateLocalTransport({.host = host}).ok());
  first->reset();
  EXPECT_TRUE(CreateLocalTransport({.host = host, .port = port}).ok());
}

TEST(LocalTransportTest, BadOptionsAreNamed) {
  const auto message = [](const LocalOptions& options) {
    auto transport = CreateLocalTransport(options);
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(transport.status().message());
  };
  EXPECT_THAT(message({.host = "no-such-host"}), HasSubstr("'no-such-host'"));
  EXPECT_THAT(message({.max_peers = 0}), HasSubstr("max_peers"));
  EXPECT_THAT(message({.max_sends_in_flight = 1025}),
              HasSubstr("max_sends_in_flight"));
  EXPECT_THAT(message({.tick_interval = absl::ZeroDuration()}),
              HasSubstr("tick_interval"));
}

TEST(LocalTransportTest, SendsPayloadsFromSharedMemoryOnly) {
  Journal at_server, at_client;
  std::vector<std::byte> own(4096);
  auto shared = SharedMemory::Create(4096, "a test");
  ASSERT_TRUE(shared.ok());
  auto server = CreateLocalTransport({});
  auto client = CreateLocalTransport({.listen = false});
  ASSERT_TRUE(server.ok() && client.ok());
  const auto of_own =
      (*client)->RegisterRegion(absl::MakeSpan(own), kNoDescriptor);
  const auto of_shared =
      (*client)->RegisterRegion(shared->memory(), shared->descriptor());
  ASSERT_TRUE(of_own.ok() && of_shared.ok());
  (*server)->Start(&at_server);
  (*client)->Start(&at_client);
  const auto peer = (*client)->Connect((*server)->properties().address);
  ASSERT_TRUE(peer.ok());
  ASSERT_TRUE(at_client.Await("up"));
  const auto send = [&](std::vector<Extent> payload, uint64_t cookie) {
    return (*client)->Send(*peer, AsBytes("h"), payload, cookie);
  };
  EXPECT_EQ(send({{*of_own, 0, 64}}, 1).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(send({{*of_shared, 0, 64}, {*of_own, 0, 64}}, 2).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(send({}, 3).ok());
  EXPECT_TRUE(send({{*of_shared, 0, 64}}, 4).ok());
  EXPECT_TRUE(at_client.Await("sent 4"));
  EXPECT_EQ(at_server.Count("payload h"), 1);
  (*client)->Stop();
  (*server)->Stop();
}

TEST(LocalTransportTest, TakesNoRegionOnceStarted) {
  Journal journal;
  std::vector<std::byte> memory(64);
  auto transport = CreateLocalTransport({});
  ASSERT_TRUE(transport.ok());
  (*transport)->Start(&journal);
  EXPECT_EQ((*transport)
                ->RegisterRegion(absl::MakeSpan(memory), kNoDescriptor)
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
  (*transport)->Stop();
}

TEST(LocalTransportTest, FullServerRefusesPeers) {
  Journal at_server, at_client;
  auto server = CreateLocalTransport({.max_peers = 2});
  auto client = CreateLocalTransport({.listen = false});
  ASSERT_TRUE(server.ok() && client.ok());
  (*server)->Start(&at_server);
  (*client)->Start(&at_client);
  const std::string& address = (*server)->properties().address;
  for (int i = 1; i <= 2; ++i) {
    ASSERT_TRUE((*client)->Connect(address).ok());
    ASSERT_TRUE(at_client.Await("up", i));
  }
  ASSERT_TRUE((*client)->Connect(address).ok());
  ASSERT_TRUE(at_client.Await("down"));
  EXPECT_EQ(at_client.Count("up"), 2);
  (*client)->Stop();
  (*server)->Stop();
}

TEST(LocalTransportTest, SilentServerIsGivenUp) {
  Journal journal;
  const std::string address = OwnAddress();
  auto silent = ListenLocally(address);
  ASSERT_TRUE(silent.ok()) << silent.status();
  auto client = CreateLocalTransport(
      {.listen = false, .connect_timeout = absl::Milliseconds(100)});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&journal);
  ASSERT_TRUE((*client)->Connect(address).ok());
  ASSERT_TRUE(journal.Await("down"));
  EXPECT_EQ(journal.Count("up"), 0);
  EXPECT_EQ(journal.why().code(), absl::StatusCode::kDeadlineExceeded);
  (*client)->Stop();
}

TEST(LocalTransportTest, NobodyThereIsSaid) {
  Journal journal;
  auto client = CreateLocalTransport({.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&journal);
  ASSERT_TRUE((*client)->Connect(OwnAddress()).ok());
  ASSERT_TRUE(journal.Await("down"));
  EXPECT_THAT(std::string(journal.why().message()), HasSubstr("nobody"));
  (*client)->Stop();
}

// Another process, of another user, that does one thing; its exit status.
template <typename F>
int AsNobody(F act) {
  const pid_t pid = fork();
  if (pid == 0) {
    constexpr uid_t kNobody = 65534;
    if (setuid(kNobody) != 0) _exit(99);
    _exit(act());
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(LocalTransportTest, AnotherUserIsHungUpOn) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Journal journal;
  auto server = CreateLocalTransport({});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&journal);
  const std::string address = (*server)->properties().address;
  EXPECT_EQ(AsNobody([&] {
              return absl::IsPermissionDenied(ConnectLocally(address).status())
                         ? 7
                         : 1;
            }),
            7);
  EXPECT_EQ(journal.Count("up"), 0);
  (*server)->Stop();
}

TEST(LocalTransportTest, AnotherUsersSocketIsNotUsed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be somebody else";
  Journal journal;
  const std::string address = OwnAddress();
  int ready[2], done[2];
  ASSERT_EQ(pipe(ready), 0);
  ASSERT_EQ(pipe(done), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(done[1]);
    if (setuid(65534) != 0) _exit(99);
    auto squatter = ListenLocally(address);
    char c = squatter.ok() ? 'y' : 'n';
    if (write(ready[1], &c, 1) != 1) _exit(98);
    while (read(done[0], &c, 1) > 0) {
    }
    _exit(0);
  }
  close(done[0]);
  char c = '?';
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  ASSERT_EQ(c, 'y');
  auto client = CreateLocalTransport({.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&journal);
  ASSERT_TRUE((*client)->Connect(address).ok());
  EXPECT_TRUE(journal.Await("down"));
  EXPECT_EQ(journal.why().code(), absl::StatusCode::kPermissionDenied);
  (*client)->Stop();
  close(done[1]);
  close(ready[0]);
  close(ready[1]);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

}  // namespace
}  // namespace baton::kv_transfer
