// What visitors may do to a TCP transport, whoever they are: wrong bytes, bytes
// one at a time, silence, floods, an end in the middle. The transport hangs up
// on them, touches nothing that was not given to them, and goes on to serve
// others.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/socket_address.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"
#include "kv_transfer/transports/tcp/tcp_wire.h"
#include "kv_transfer/transports/tcp_socket.h"
#include "tests/kv_transfer/transports/local/local_node.h"

namespace baton::kv_transfer::tcp_visitor_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kGreeting(tcp_wire::kGreeting);

// A connection that says what a test wants.
class Visitor final {
 public:
  explicit Visitor(const std::string& address)
      : socket_(*BeginConnectTcp(*ParseSocketAddress(address))) {
    // What is said goes out as it is said.
    const int on = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  explicit Visitor(ScopedFd socket) : socket_(std::move(socket)) {}

  // False when hung up on.
  bool Say(absl::string_view bytes) {
    while (!bytes.empty()) {
      pollfd room = {socket_.get(), POLLOUT, 0};
      if (poll(&room, 1, 20000) != 1) return false;
      const ssize_t n = send(socket_.get(), bytes.data(), bytes.size(),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return false;
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    }
    return true;
  }
  // So many bytes, or fewer at the end of the connection.
  std::string Hear(size_t count) {
    std::string heard;
    while (heard.size() < count) {
      pollfd news = {socket_.get(), POLLIN, 0};
      if (poll(&news, 1, 20000) != 1) return heard + " and then nothing";
      char buffer[4096];
      const ssize_t n =
          recv(socket_.get(), buffer,
               std::min(sizeof(buffer), count - heard.size()), MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (n <= 0) return heard;
      heard.append(buffer, static_cast<size_t>(n));
    }
    return heard;
  }
  bool AwaitEnd() {
    pollfd news = {socket_.get(), POLLIN, 0};
    char byte;
    return poll(&news, 1, 20000) == 1 &&
           recv(socket_.get(), &byte, 1, MSG_DONTWAIT) <= 0;
  }

 private:
  const ScopedFd socket_;
};

class TcpVisitorTest : public ::testing::Test {
 protected:
  void Start(TcpOptions options = {}) {
    server_ = *CreateTcpTransport(options);
    region_ = *server_->RegisterRegion(absl::MakeSpan(memory_), kNoDescriptor);
    server_->Start(&journal_);
  }
  void TearDown() override {
    if (server_ != nullptr) server_->Stop();
  }
  const std::string& address() { return server_->properties().address; }

  // One that is up.
  std::unique_ptr<Visitor> Welcome() {
    const int before = journal_.Count("up");
    auto visitor = std::make_unique<Visitor>(address());
    EXPECT_TRUE(visitor->Say(kGreeting));
    EXPECT_EQ(visitor->Hear(kGreeting.size()), kGreeting);
    EXPECT_TRUE(journal_.Await("up", before + 1));
    return visitor;
  }
  std::string Memory(size_t begin, size_t length) const {
    return std::string(reinterpret_cast<const char*>(&memory_[begin]), length);
  }

  std::vector<std::byte> memory_ =
      std::vector<std::byte>(1 << 20, std::byte{'.'});
  Journal journal_;
  absl::Mutex mu_;
  ScopedFd passed_on_;
  std::string said_;
  RegionId region_{};
  std::unique_ptr<Transport> server_;
};

TEST_F(TcpVisitorTest, WrongFirstWordsDoNoHarm) {
  Start();
  for (const std::string& words :
       {std::string("x"), std::string("GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        std::string(64, '\0'), std::string(100000, 'a'),
        std::string("baton kv door 1\n"), std::string("baton kv tcp 2\n")}) {
    Visitor visitor(address());
    visitor.Say(words);
    EXPECT_TRUE(visitor.AwaitEnd()) << words.substr(0, 20);
  }
  EXPECT_THAT(journal_.lines(), IsEmpty());
  Welcome();
}

TEST_F(TcpVisitorTest, SilenceEndsAtTheDeadline) {
  Start({.connect_timeout = absl::Milliseconds(50)});
  Visitor silent(address()), half(address());
  half.Say(kGreeting.substr(0, 7));
  EXPECT_TRUE(silent.AwaitEnd());
  EXPECT_TRUE(half.AwaitEnd());
  EXPECT_THAT(journal_.lines(), IsEmpty());
}

TEST_F(TcpVisitorTest, PlacesAreBoundedAndComeBack) {
  Start({.max_peers = 2});
  auto first = Welcome(), second = Welcome();
  Visitor third(address());
  third.Say(kGreeting);
  EXPECT_TRUE(third.AwaitEnd());
  second.reset();
  ASSERT_TRUE(journal_.Await("down"));
  Welcome();
}

// However many come and say nothing, who greets finds a place.
TEST_F(TcpVisitorTest, SilentVisitorsTakeNoPlaces) {
  Start({.max_peers = 3});
  std::vector<std::unique_ptr<Visitor>> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(std::make_unique<Visitor>(address()));
  }
  auto first = Welcome(), second = Welcome();
  silent.push_back(std::make_unique<Visitor>(address()));
  Welcome();
  EXPECT_TRUE(silent.front()->AwaitEnd());
}

TEST_F(TcpVisitorTest, BytesMayComeOneAtATime) {
  journal_.on_payload = [this](uint64_t bytes) {
    return Landing{{{region_, 10, 2}, {region_, 100, bytes - 2}}, 1};
  };
  Start();
  Visitor visitor(address());
  const auto spell = [&](const std::string& bytes) {
    for (const char byte : bytes) ASSERT_TRUE(visitor.Say({&byte, 1}));
  };
  spell(kGreeting + tcp_wire::EncodeFrame("hello", 0));
  ASSERT_TRUE(journal_.Await("message hello"));
  // The reader has all of it before the next byte goes out.
  spell(tcp_wire::EncodeFrame("kv", 7));
  ASSERT_TRUE(journal_.Await("payload kv"));
  spell("ABCDEFG" + tcp_wire::EncodeFrame("bye", 0));
  ASSERT_TRUE(journal_.Await("message bye"));
  EXPECT_THAT(journal_.lines(), ElementsAre("up", "message hello", "payload kv",
                                            "landed", "message bye"));
  EXPECT_EQ(Memory(9, 4), ".AB.");
  EXPECT_EQ(Memory(99, 7), ".CDEFG.");
}

TEST_F(TcpVisitorTest, ManyFramesMayComeAtOnce) {
  uint64_t next = 0;
  journal_.on_payload = [this,
                         &next](uint64_t bytes) -> std::optional<Landing> {
    const uint64_t at = next;
    next += 1000;
    if (at % 2000 != 0) return std::nullopt;
    return Landing{{{region_, at, bytes}}, at};
  };
  Start();
  std::string all = kGreeting;
  for (int i = 0; i < 200; ++i) {
    all += tcp_wire::EncodeFrame("kv", 500) +
           std::string(500, static_cast<char>('a' + i % 20)) +
           tcp_wire::EncodeFrame("m", 0);
  }
  Visitor visitor(address());
  ASSERT_TRUE(visitor.Say(all));
  ASSERT_TRUE(journal_.Await("message m", 200));
  EXPECT_EQ(journal_.Count("landed"), 100);
  for (int i = 0; i < 200; ++i) {
    const char wanted = i % 2 == 0 ? static_cast<char>('a' + i % 20) : '.';
    EXPECT_EQ(Memory(i * 1000, 500), std::string(500, wanted)) << i;
    EXPECT_EQ(Memory(i * 1000 + 500, 1), ".") << i;
  }
}

// A refused payload is thrown away however large it is, and what follows it is
// understood.
TEST_F(TcpVisitorTest, RefusedBytesGoNowhere) {
  Start();
  auto visitor = Welcome();
  ASSERT_TRUE(visitor->Say(tcp_wire::EncodeFrame("kv", 10 << 20)));
  ASSERT_TRUE(visitor->Say(std::string(10 << 20, 'X')));
  ASSERT_TRUE(visitor->Say(tcp_wire::EncodeFrame("after", 0)));
  ASSERT_TRUE(journal_.Await("message after"));
  EXPECT_EQ(Memory(0, memory_.size()), std::string(memory_.size(), '.'));
}

TEST_F(TcpVisitorTest, MalformedLengthsEndIt) {
  Start();
  for (const std::string& frame :
       {std::string(8, '\0'), std::string(8, '\xff'),
        tcp_wire::EncodeFrame(std::string(kMaxHeaderBytes + 1, 'h'), 0),
        tcp_wire::EncodeFrame("h", kMaxPayloadBytes + 1)}) {
    const int before = journal_.Count("down");
    auto visitor = Welcome();
    visitor->Say(frame);
    EXPECT_TRUE(visitor->AwaitEnd());
    ASSERT_TRUE(journal_.Await("down", before + 1));
    EXPECT_THAT(std::string(journal_.why().message()),
                HasSubstr("the peer sent a frame with a header of"));
  }
  EXPECT_THAT(journal_.lines(), Not(Contains(HasSubstr("message"))));
}

TEST_F(TcpVisitorTest, AnEndWithinAPayloadIsNoLanding) {
  journal_.on_payload = [this](uint64_t bytes) {
    return Landing{{{region_, 0, bytes}}, 1};
  };
  Start();
  auto visitor = Welcome();
  ASSERT_TRUE(
      visitor->Say(tcp_wire::EncodeFrame("kv", 5000) + std::string(3000, 'k')));
  ASSERT_TRUE(journal_.Await("payload kv"));
  visitor.reset();
  ASSERT_TRUE(journal_.Await("not landed"));
  EXPECT_THAT(journal_.lines(),
              ElementsAre("up", "payload kv", "down", "not landed"));
}

// Who does not read fills a bound, and is given up without harm.
TEST_F(TcpVisitorTest, WhoDoesNotReadHoldsUpNobody) {
  Start({.max_sends_outstanding = 100});
  auto deaf = Welcome();
  const PeerId peer = journal_.peer(0);
  const std::vector<Extent> all = {{region_, 0, memory_.size()}};
  absl::Status status;
  uint64_t cookie = 0;
  for (; status.ok() && cookie < 1000; ++cookie) {
    status = server_->Send(peer, AsBytes("kv"), all, cookie);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  auto other = Welcome();
  ASSERT_TRUE(other->Say(tcp_wire::EncodeFrame("still here", 0)));
  ASSERT_TRUE(journal_.Await("message still here"));
  server_->ClosePeer(peer);
  // The last of those that were accepted.
  ASSERT_TRUE(journal_.Await("not sent " + std::to_string(cookie - 2)));
  const auto lines = journal_.lines();
  EXPECT_EQ(std::count_if(lines.begin(), lines.end(),
                          [](const std::string& line) {
                            return line.find("sent ") != std::string::npos;
                          }),
            static_cast<int64_t>(cookie - 1));
}

TEST_F(TcpVisitorTest, FramesAreAsWritten) {
  Start();
  auto visitor = Welcome();
  const PeerId peer = journal_.peer(0);
  std::memcpy(&memory_[5], "first", 5);
  std::memcpy(&memory_[500], "second", 6);
  ASSERT_TRUE(
      server_
          ->Send(peer, AsBytes("head"), {{region_, 5, 5}, {region_, 500, 6}}, 3)
          .ok());
  ASSERT_TRUE(journal_.Await("sent 3"));
  const std::string wanted = tcp_wire::EncodeFrame("head", 11) + "firstsecond";
  EXPECT_EQ(visitor->Hear(wanted.size()), wanted);
}

TEST_F(TcpVisitorTest, StrangersArePassedOn) {
  Start({.on_stranger = [this](ScopedFd socket, std::string words) {
    absl::MutexLock lock(&mu_);
    passed_on_ = std::move(socket);
    said_ = std::move(words);
  }});
  Visitor visitor(address());
  visitor.Say("baton kv door");
  {
    absl::MutexLock lock(&mu_);
    const auto there = [&] { return passed_on_.valid(); };
    ASSERT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
  }
  EXPECT_EQ(said_, "baton kv door");
  Visitor other_end(std::move(passed_on_));
  visitor.Say(" 1");
  EXPECT_EQ(other_end.Hear(2), " 1");
  other_end.Say("welcome");
  EXPECT_EQ(visitor.Hear(7), "welcome");
  EXPECT_THAT(journal_.lines(), IsEmpty());
  Welcome();
}

TEST(TcpTransportTest, SaysWhatIsWrongWithItsOptions) {
  const auto message = [](const TcpOptions& options) {
    return std::string(CreateTcpTransport(options).status().message());
  };
  EXPECT_THAT(message({.max_peers = 0}), HasSubstr("max_peers"));
  EXPECT_THAT(message({.listen_host = "example.org"}),
              HasSubstr("example.org"));
  EXPECT_THAT(message({.listen_host = "0.0.0.0"}), HasSubstr("advertise_host"));
  EXPECT_THAT(message({.advertise_host = "nowhere"}), HasSubstr("nowhere"));
  const auto taken = CreateTcpTransport({});
  ASSERT_TRUE(taken.ok());
  const uint16_t port =
      PortOf(ParseSocketAddress((*taken)->properties().address)->storage);
  const absl::Status second = CreateTcpTransport({.port = port}).status();
  EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.message()), HasSubstr(std::to_string(port)));
}

}  // namespace
}  // namespace baton::kv_transfer::tcp_visitor_test
