#include "kv_transfer/transports/ucx/door.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/clock.h"

namespace baton::kv_transfer {
namespace {

class DoorTest : public ::testing::Test {
 protected:
  DoorTest() : door_(*Door::Open(*MakeSocketAddress("127.0.0.1", 0))) {}

  SocketAddress address() {
    return *MakeSocketAddress("127.0.0.1", door_.port());
  }

  // Waits until something at the door can be read, then serves it.
  void Serve() {
    std::vector<pollfd> fds;
    door_.AddPollFds(&fds);
    ASSERT_GT(poll(fds.data(), fds.size(), /*timeout=*/20000), 0);
    ServeNow();
  }
  void ServeNow() {
    door_.Serve(now_, [this] {
      ++let_in_;
      return port_;
    });
  }
  size_t NumVisitors() {
    std::vector<pollfd> fds;
    door_.AddPollFds(&fds);
    return fds.size() - 1;
  }
  // A plain connection.
  ScopedFd Visit() {
    ScopedFd fd(socket(AF_INET, SOCK_STREAM, 0));
    const SocketAddress to = address();
    EXPECT_EQ(connect(fd.get(), to.get(), to.length), 0);
    return fd;
  }
  void Say(const ScopedFd& fd, const std::string& words) {
    ASSERT_EQ(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(words.size()));
  }
  // All that is said until the other side hangs up.
  std::string Hear(const ScopedFd& fd) {
    std::string out;
    char c;
    while (recv(fd.get(), &c, 1, 0) == 1) out += c;
    return out;
  }

  Door door_;
  uint16_t port_ = 0x1234;
  int let_in_ = 0;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
};

TEST_F(DoorTest, RightWordsGiveThePort) {
  const ScopedFd fd = Visit();
  Say(fd, "baton kv door 1\n");
  while (let_in_ == 0) Serve();
  EXPECT_EQ(Hear(fd), std::string("baton kv door 1\n\x34\x12"));
  EXPECT_EQ(NumVisitors(), 0u);
}

TEST_F(DoorTest, WordsMayComeInPieces) {
  const ScopedFd fd = Visit();
  Say(fd, "baton kv");
  Serve();
  EXPECT_EQ(let_in_, 0);
  Say(fd, " door 1\n");
  while (let_in_ == 0) Serve();
  EXPECT_EQ(Hear(fd).size(), 18u);
}

TEST_F(DoorTest, OthersAreHungUpOn) {
  for (const char* words :
       {"GET / HTTP/1.1\r\n\r\n", "baton kv door 2\n", "B"}) {
    const ScopedFd fd = Visit();
    Say(fd, words);
    do {
      Serve();
    } while (NumVisitors() > 0);
    EXPECT_EQ(Hear(fd), "");
  }
  EXPECT_EQ(let_in_, 0);
}

TEST_F(DoorTest, SilentVisitorsAreSentAway) {
  const ScopedFd fd = Visit();
  Serve();
  EXPECT_EQ(NumVisitors(), 1u);
  now_ += absl::Seconds(3);
  ServeNow();
  EXPECT_EQ(NumVisitors(), 0u);
  EXPECT_EQ(Hear(fd), "");
}

TEST_F(DoorTest, VisitorsAreBounded) {
  std::vector<ScopedFd> visitors;
  for (int i = 0; i < 300; ++i) {
    visitors.push_back(Visit());
    Serve();
  }
  EXPECT_EQ(NumVisitors(), 256u);
  EXPECT_EQ(Hear(visitors.front()), "");
}

TEST_F(DoorTest, KnockLearnsThePort) {
  auto knock = Knock::Begin(address());
  ASSERT_TRUE(knock.ok());
  std::optional<uint16_t> port;
  while (!port.has_value()) {
    auto answer = knock->Serve();
    ASSERT_TRUE(answer.ok()) << answer.status();
    port = *answer;
    ServeNow();
  }
  EXPECT_EQ(*port, 0x1234);
}

TEST_F(DoorTest, FullHouseIsSaid) {
  port_ = 0;
  auto knock = Knock::Begin(address());
  ASSERT_TRUE(knock.ok());
  absl::Status status;
  while (status.ok()) {
    status = knock->Serve().status();
    ServeNow();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST_F(DoorTest, KnockAtAnotherServerFails) {
  const ScopedFd server(socket(AF_INET, SOCK_STREAM, 0));
  auto any = *MakeSocketAddress("127.0.0.1", 0);
  ASSERT_EQ(bind(server.get(), any.get(), any.length), 0);
  ASSERT_EQ(listen(server.get(), 1), 0);
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  ASSERT_EQ(
      getsockname(server.get(), reinterpret_cast<sockaddr*>(&bound.storage),
                  &bound.length),
      0);
  auto knock = Knock::Begin(bound);
  ASSERT_TRUE(knock.ok());
  const ScopedFd accepted(accept(server.get(), nullptr, nullptr));
  Say(accepted, "HTTP/1.1 400 Bad Request\r\n\r\n");
  absl::Status status;
  while (status.ok()) status = knock->Serve().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
}

}  // namespace
}  // namespace baton::kv_transfer
