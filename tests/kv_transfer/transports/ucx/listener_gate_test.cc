#include "kv_transfer/transports/ucx/listener_gate.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <thread>

#include <gtest/gtest.h>

#include "common/scoped_fd.h"
#include "kv_transfer/transports/socket_address.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

class ListenerGateTest : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = ListenTcp(*MakeSocketAddress("127.0.0.1", 0));
    ASSERT_TRUE(listener.ok()) << listener.status();
    socket_ = std::move(listener->socket);
    port_ = listener->port;
  }

  SocketAddress Address() const {
    return *MakeSocketAddress("127.0.0.1", port_);
  }
  // Somebody who connects; invalid when that does not come about soon.
  ScopedFd Connect() {
    auto socket = BeginConnectTcp(*MakeSocketAddress("127.0.0.1", port_));
    if (!socket.ok()) return ScopedFd();
    pollfd writable = {socket->get(), POLLOUT, 0};
    if (poll(&writable, 1, 200) != 1 || !ConnectResult(socket->get()).ok()) {
      return ScopedFd();
    }
    return *std::move(socket);
  }
  ScopedFd Accept() {
    pollfd readable = {socket_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&readable, 1, 10'000), 1);
    return ScopedFd(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }

  ScopedFd socket_;
  uint16_t port_ = 0;
};

TEST_F(ListenerGateTest, ClosedItTakesNobodyAndKeepsWhoIsThere) {
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(Address()).ok());
  const ScopedFd client = Connect();
  ASSERT_TRUE(client.valid());
  const ScopedFd server = Accept();
  gate.Close();
  gate.Close();
  EXPECT_FALSE(Connect().valid());
  char byte = 'x';
  EXPECT_EQ(send(client.get(), &byte, 1, 0), 1);
  EXPECT_EQ(recv(server.get(), &byte, 1, 0), 1);
  gate.Open();
  EXPECT_TRUE(Connect().valid());
}

// The kernel gives a port of one address to somebody of another as well.
TEST_F(ListenerGateTest, LeavesTheSamePortOfAnotherAddressAlone) {
  const SocketAddress elsewhere = *MakeSocketAddress("127.0.0.2", port_);
  // The later one is found later.
  const auto other = ListenTcp(elsewhere);
  ASSERT_TRUE(other.ok()) << other.status();
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(Address()).ok());
  gate.Close();
  EXPECT_FALSE(Connect().valid());
  const ScopedFd client = *BeginConnectTcp(elsewhere);
  pollfd somebody = {other->socket.get(), POLLIN, 0};
  ASSERT_EQ(poll(&somebody, 1, 10'000), 1);
  const ScopedFd server(accept(other->socket.get(), nullptr, nullptr));
  ASSERT_TRUE(server.valid());
  EXPECT_TRUE(gate.EndConnections(absl::Seconds(20), [] {}));
  char byte = 'x';
  EXPECT_EQ(send(client.get(), &byte, 1, MSG_NOSIGNAL), 1);
  EXPECT_EQ(recv(server.get(), &byte, 1, 0), 1);
  // Its listener listens on.
  EXPECT_TRUE(gate.Attach(elsewhere).ok());
}

// A listener of all addresses has what came in by any.
TEST_F(ListenerGateTest, OfAllAddressesEndsWhatCameInByOne) {
  const auto all = ListenTcp(*MakeSocketAddress("0.0.0.0", 0));
  ASSERT_TRUE(all.ok()) << all.status();
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(*MakeSocketAddress("0.0.0.0", all->port)).ok());
  const ScopedFd client =
      *BeginConnectTcp(*MakeSocketAddress("127.0.0.1", all->port));
  ScopedFd server;
  EXPECT_TRUE(gate.EndConnections(absl::Seconds(20), [&] {
    // What it has shut down, its owner closes.
    server = server.valid()
                 ? ScopedFd()
                 : ScopedFd(accept(all->socket.get(), nullptr, nullptr));
  }));
  char byte = 0;
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), 0);
}

TEST_F(ListenerGateTest, EndsWhatCameIn) {
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(Address()).ok());
  const auto nothing = [] {};
  EXPECT_TRUE(gate.EndConnections(absl::Seconds(20), nothing));
  const ScopedFd client = Connect();
  gate.Close();
  // Nobody accepts it.
  EXPECT_FALSE(gate.EndConnections(absl::Milliseconds(20), nothing));
  ScopedFd server = Accept();
  int rounds = 0;
  // Nobody closes it.
  EXPECT_FALSE(gate.EndConnections(absl::Milliseconds(20), [&] { ++rounds; }));
  EXPECT_GT(rounds, 0);
  char byte = 0;
  EXPECT_EQ(recv(server.get(), &byte, 1, 0), 0);
  EXPECT_EQ(recv(client.get(), &byte, 1, 0), 0);
  std::thread owner([&] { server = ScopedFd(); });
  EXPECT_TRUE(gate.EndConnections(absl::Seconds(20), nothing));
  owner.join();
  // It still listens.
  gate.Open();
  EXPECT_TRUE(Connect().valid());
}

TEST_F(ListenerGateTest, StaysOpenWhereTheSystemRefusesAFilter) {
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(Address()).ok());
  // As when there is no memory for one: not from now on.
  const int locked = 1;
  ASSERT_EQ(setsockopt(socket_.get(), SOL_SOCKET, SO_LOCK_FILTER, &locked,
                       sizeof(locked)),
            0);
  gate.Close();
  gate.Close();
  EXPECT_TRUE(Connect().valid());
  gate.Open();
  EXPECT_TRUE(Connect().valid());
}

TEST_F(ListenerGateTest, WithoutASocketItDoesNothing) {
  ListenerGate gate;
  gate.Close();
  gate.Open();
  EXPECT_TRUE(gate.EndConnections(absl::ZeroDuration(), [] {}));
  const uint16_t port = port_;
  socket_ = ScopedFd();
  const absl::Status status =
      gate.Attach(*MakeSocketAddress("127.0.0.1", port));
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  gate.Close();
}

}  // namespace
}  // namespace baton::kv_transfer
