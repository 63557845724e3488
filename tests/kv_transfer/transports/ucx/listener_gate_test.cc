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
  ASSERT_TRUE(gate.Attach(port_).ok());
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

TEST_F(ListenerGateTest, EndsWhatCameIn) {
  ListenerGate gate;
  ASSERT_TRUE(gate.Attach(port_).ok());
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

TEST_F(ListenerGateTest, WithoutASocketItDoesNothing) {
  ListenerGate gate;
  gate.Close();
  gate.Open();
  EXPECT_TRUE(gate.EndConnections(absl::ZeroDuration(), [] {}));
  const uint16_t port = port_;
  socket_ = ScopedFd();
  const absl::Status status = gate.Attach(port);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  gate.Close();
}

}  // namespace
}  // namespace baton::kv_transfer
