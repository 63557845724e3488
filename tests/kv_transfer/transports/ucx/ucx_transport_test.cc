// What is particular to UCX: its options, its errors, and what else may connect
// to its port.
#include "kv_transfer/transports/ucx/ucx_transport.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;

class PeerCounter final : public TransportHandler {
 public:
  void OnPeerUp(PeerId, const std::string&) override {
    absl::MutexLock lock(&mu_);
    ++ups_;
  }
  void OnPeerDown(PeerId, const absl::Status& why) override {
    absl::MutexLock lock(&mu_);
    ++downs_;
    why_ = why;
  }
  void OnMessage(PeerId, ByteSpan) override {}
  std::optional<Landing> OnPayload(PeerId, ByteSpan, uint64_t) override {
    return std::nullopt;
  }
  void OnLanded(PeerId, uint64_t, const absl::Status&) override {}
  void OnSent(PeerId, uint64_t, const absl::Status&) override {}
  void OnTick() override {}

  bool AwaitUps(int n) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&] { return ups_ >= n; };
    return mu_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(20));
  }
  bool AwaitDowns(int n) {
    absl::MutexLock lock(&mu_);
    const auto reached = [&] { return downs_ >= n; };
    return mu_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(20));
  }
  int ups() {
    absl::MutexLock lock(&mu_);
    return ups_;
  }
  absl::Status why() {
    absl::MutexLock lock(&mu_);
    return why_;
  }

 private:
  absl::Mutex mu_;
  int ups_ = 0, downs_ = 0;
  absl::Status why_;
};

// A plain TCP socket; closed at the end.
class Socket final {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM, 0)) {}
  ~Socket() { close(fd_); }
  void Connect(const std::string& address) {
    auto to = ParseSocketAddress(address);
    ASSERT_TRUE(to.ok());
    ASSERT_EQ(connect(fd_, to->get(), to->length), 0);
  }
  // Accepts in the kernel only; nobody ever answers.
  std::string Listen() {
    auto any = MakeSocketAddress("127.0.0.1", 0);
    EXPECT_EQ(bind(fd_, any->get(), any->length), 0);
    EXPECT_EQ(listen(fd_, 16), 0);
    SocketAddress bound;
    bound.length = sizeof(bound.storage);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&bound.storage),
                          &bound.length),
              0);
    return FormatSocketAddress(bound.storage);
  }
  void Write(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Until the other side closed.
  void AwaitEnd() {
    char buffer[256];
    while (recv(fd_, buffer, sizeof(buffer), 0) > 0) {
    }
  }
  // Whether a connection comes about soon.
  bool TryConnect(const std::string& address) {
    auto to = ParseSocketAddress(address);
    EXPECT_TRUE(to.ok());
    fcntl(fd_, F_SETFL, O_NONBLOCK);
    if (connect(fd_, to->get(), to->length) == 0) return true;
    if (errno != EINPROGRESS) return false;
    pollfd writable = {fd_, POLLOUT, 0};
    int error = 0;
    socklen_t length = sizeof(error);
    return poll(&writable, 1, 200) == 1 &&
           getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 &&
           error == 0;
  }
  // The next who connects; REQUIRES: Listen.
  std::unique_ptr<Socket> Accept() {
    return std::unique_ptr<Socket>(new Socket(accept(fd_, nullptr, nullptr)));
  }
  // What comes next, at most so many bytes; empty at the end.
  std::string Read(size_t most) {
    std::string bytes(most, 0);
    const ssize_t n = recv(fd_, bytes.data(), most, 0);
    bytes.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return bytes;
  }
  void Shutdown() { shutdown(fd_, SHUT_RDWR); }

 private:
  explicit Socket(int fd) : fd_(fd) { EXPECT_GE(fd, 0); }

  const int fd_;
};

// Between a client and a server of the transport: a door that sends the client
// by way of this, where what it says to UCX's listener is held back.
class Detour final {
 public:
  explicit Detour(const std::string& server) : server_(server) {
    address_ = door_.Listen();
    relay_address_ = relay_.Listen();
    thread_ = std::thread([this] { Run(); });
  }
  ~Detour() {
    Release();
    thread_.join();
  }

  const std::string& address() const { return address_; }
  // Until the client said something. Returns where UCX listens.
  std::string AwaitHeld() {
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&held_));
    return listener_;
  }
  // Lets it through, and what follows.
  void Release() {
    absl::MutexLock lock(&mu_);
    released_ = true;
  }

 private:
  void Run() {
    const auto visitor = door_.Accept();
    const std::string words = visitor->Read(16);
    Socket knock;
    knock.Connect(server_);
    knock.Write(words);
    std::string answer = knock.Read(18);
    ASSERT_EQ(answer.size(), 18u);
    const auto byte = [&](size_t i) { return uint8_t(answer[i]); };
    const std::string listener =
        absl::StrCat("127.0.0.1:", byte(16) | byte(17) << 8);
    Socket server;
    server.Connect(listener);
    const uint16_t port = PortOf(ParseSocketAddress(relay_address_)->storage);
    answer[16] = static_cast<char>(port & 0xff);
    answer[17] = static_cast<char>(port >> 8);
    visitor->Write(answer);
    visitor->Shutdown();
    const auto client = relay_.Accept();
    const std::string first = client->Read(4096);
    {
      absl::MutexLock lock(&mu_);
      listener_ = listener;
      held_ = true;
      mu_.Await(absl::Condition(&released_));
    }
    server.Write(first);
    std::thread back([&] {
      for (std::string bytes; !(bytes = server.Read(4096)).empty();) {
        client->Write(bytes);
      }
      client->Shutdown();
    });
    for (std::string bytes; !(bytes = client->Read(4096)).empty();) {
      server.Write(bytes);
    }
    server.Shutdown();
    back.join();
  }

  const std::string server_;
  Socket door_, relay_;
  std::string address_, relay_address_;
  absl::Mutex mu_;
  std::string listener_;
  bool held_ = false;
  bool released_ = false;
  std::thread thread_;
};

// Where this process listens (IPv4), as addresses to connect to.
std::vector<std::string> ListeningAddresses() {
  std::set<std::string> inodes;
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    const std::string text = target.string();
    if (text.rfind("socket:[", 0) == 0) {
      inodes.insert(text.substr(8, text.size() - 9));
    }
  }
  std::vector<std::string> addresses;
  std::ifstream table("/proc/net/tcp");
  std::string line;
  std::getline(table, line);
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string slot, local, remote, state, skip, inode;
    fields >> slot >> local >> remote >> state;
    for (int i = 0; i < 5; ++i) fields >> skip;
    fields >> inode;
    if (state != "0A" || inodes.count(inode) == 0) continue;
    // The address is shown as one number in the machine's byte order.
    sockaddr_storage bound{};
    auto& v4 = reinterpret_cast<sockaddr_in&>(bound);
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = std::stoul(local.substr(0, 8), nullptr, 16);
    v4.sin_port = htons(std::stoul(local.substr(9), nullptr, 16));
    addresses.push_back(FormatSocketAddress(bound));
  }
  return addresses;
}

TEST(UcxTransportTest, AddressIsWhereItListens) {
  auto transport = CreateUcxTransport({});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_THAT((*transport)->properties().address, HasSubstr("127.0.0.1:"));
  EXPECT_EQ((*transport)->properties().name, "ucx/tcp");
}

TEST(UcxTransportTest, UnavailableTransportIsNamed) {
  for (const char* tls : {"rc", "nonsense"}) {
    auto transport = CreateUcxTransport({.tls = tls});
    ASSERT_FALSE(transport.ok());
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kFailedPrecondition)
        << transport.status();
    EXPECT_THAT(std::string(transport.status().message()),
                HasSubstr("'" + std::string(tls) + "'"));
  }
}

TEST(UcxTransportTest, PortInUseIsNamed) {
  auto first = CreateUcxTransport({});
  ASSERT_TRUE(first.ok());
  const auto address = ParseSocketAddress((*first)->properties().address);
  const uint16_t port = PortOf(address->storage);
  auto second = CreateUcxTransport({.port = port});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists)
      << second.status();
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr("127.0.0.1:" + std::to_string(port)));
  // And it is free again once the first is gone.
  first->reset();
  auto third = CreateUcxTransport({.port = port});
  EXPECT_TRUE(third.ok()) << third.status();
}

TEST(UcxTransportTest, BadOptionsAreNamed) {
  const auto message = [](const UcxOptions& options) {
    auto transport = CreateUcxTransport(options);
    EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(transport.status().message());
  };
  EXPECT_THAT(message({.listen_host = "no-such-host"}),
              HasSubstr("'no-such-host'"));
  EXPECT_THAT(message({.listen_host = "0.0.0.0"}), HasSubstr("advertise_host"));
  EXPECT_THAT(message({.max_peers = 0}), HasSubstr("max_peers"));
}

TEST(UcxTransportTest, AdvertisesTheHostItIsTold) {
  auto transport = CreateUcxTransport(
      {.listen_host = "0.0.0.0", .advertise_host = "127.0.0.1"});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_THAT((*transport)->properties().address, HasSubstr("127.0.0.1:"));
}

TEST(UcxTransportTest, CrashHandlersAreNotUcxs) {
  PrepareUcxEnvironment();
  struct sigaction hup {};
  ASSERT_EQ(sigaction(SIGHUP, nullptr, &hup), 0);
  EXPECT_EQ(hup.sa_handler, SIG_DFL);
}

TEST(UcxTransportTest, SilentServerIsGivenUp) {
  PeerCounter handler;
  Socket server;
  const std::string address = server.Listen();
  auto transport = CreateUcxTransport(
      {.listen = false, .connect_timeout = absl::Milliseconds(200)});
  ASSERT_TRUE(transport.ok());
  (*transport)->Start(&handler);
  ASSERT_TRUE((*transport)->Connect(address).ok());
  ASSERT_TRUE(handler.AwaitDowns(1));
  EXPECT_EQ(handler.ups(), 0);
  EXPECT_EQ(handler.why().code(), absl::StatusCode::kDeadlineExceeded);
  (*transport)->Stop();
}

TEST(UcxTransportTest, FullServerRefusesPeers) {
  PeerCounter server_handler, handler;
  auto server = CreateUcxTransport({.max_peers = 2});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&server_handler);
  auto client = CreateUcxTransport({.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&handler);
  const std::string& address = (*server)->properties().address;
  for (int i = 1; i <= 2; ++i) {
    ASSERT_TRUE((*client)->Connect(address).ok());
    ASSERT_TRUE(handler.AwaitUps(i));
  }
  ASSERT_TRUE((*client)->Connect(address).ok());
  ASSERT_TRUE(handler.AwaitDowns(1));
  EXPECT_EQ(handler.ups(), 2);
  (*client)->Stop();
  (*server)->Stop();
}

// The first two stay under way, because their server never answers.
TEST(UcxTransportTest, OwnPeersAreBounded) {
  PeerCounter handler;
  Socket server;
  const std::string address = server.Listen();
  auto client = CreateUcxTransport(
      {.listen = false, .connect_timeout = absl::Hours(1), .max_peers = 2});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&handler);
  ASSERT_TRUE((*client)->Connect(address).ok());
  ASSERT_TRUE((*client)->Connect(address).ok());
  EXPECT_EQ((*client)->Connect(address).status().code(),
            absl::StatusCode::kResourceExhausted);
  (*client)->Stop();
}

// A port scan, a browser, a fuzzer: whatever connects, the server lives and
// goes on to serve its peers.
TEST(UcxTransportTest, GarbageOnThePortDoesNoHarm) {
  PeerCounter server_handler, handler;
  auto server = CreateUcxTransport({});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&server_handler);
  const std::string address = (*server)->properties().address;
  const std::string kGarbage[] = {
      "",
      "x",
      "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
      std::string(64, '\0'),
      std::string(64, '\xff'),
  };
  // UCX has ports of its own for data.
  const std::vector<std::string> listening = ListeningAddresses();
  EXPECT_THAT(listening, ::testing::Contains(address));
  EXPECT_GE(listening.size(), 2u);
  for (const std::string& port : listening) {
    for (const std::string& bytes : kGarbage) {
      Socket socket;
      socket.Connect(port);
      socket.Write(bytes);
    }
  }
  // The door hangs up on visitors with the wrong words.
  Socket visitor;
  visitor.Connect(address);
  visitor.Write("baton kv door 2\n");
  visitor.AwaitEnd();
  auto client = CreateUcxTransport({.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&handler);
  ASSERT_TRUE((*client)->Connect(address).ok());
  EXPECT_TRUE(handler.AwaitUps(1));
  EXPECT_TRUE(server_handler.AwaitUps(1));
  (*client)->Stop();
  (*server)->Stop();
  EXPECT_EQ(server_handler.ups(), 1);
}

// Until nobody can connect there; false when that does not come.
bool AwaitClosed(const std::string& address) {
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (absl::Now() < deadline) {
    Socket stranger;
    if (!stranger.TryConnect(address)) return true;
  }
  return false;
}

// A client may stand still between its connection and its first words for
// longer than the server waits for it.
TEST(UcxTransportTest, AClientThatStandsStillWhileItConnectsDoesNoHarm) {
  PeerCounter server_handler, handler;
  auto server =
      CreateUcxTransport({.connect_timeout = absl::Milliseconds(200)});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&server_handler);
  Detour detour((*server)->properties().address);
  auto client = CreateUcxTransport(
      {.listen = false, .connect_timeout = absl::Seconds(20)});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&handler);
  ASSERT_TRUE((*client)->Connect(detour.address()).ok());
  EXPECT_TRUE(AwaitClosed(detour.AwaitHeld()));
  EXPECT_EQ(server_handler.ups(), 0);
  detour.Release();
  EXPECT_TRUE(handler.AwaitUps(1));
  EXPECT_TRUE(server_handler.AwaitUps(1));
  (*client)->Stop();
  (*server)->Stop();
}

// UCX's listener is there for as long as the transport, and hears peers that
// were let in alone.
TEST(UcxTransportTest, StrangersDoNotReachUcxOncePeersAreThere) {
  PeerCounter server_handler, handler;
  auto server =
      CreateUcxTransport({.connect_timeout = absl::Milliseconds(200)});
  ASSERT_TRUE(server.ok());
  (*server)->Start(&server_handler);
  auto client = CreateUcxTransport({.listen = false});
  ASSERT_TRUE(client.ok());
  (*client)->Start(&handler);
  // The door, and ports for data, which take strangers without harm.
  const std::vector<std::string> before = ListeningAddresses();
  const std::string& address = (*server)->properties().address;
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE((*client)->Connect(address).ok());
    ASSERT_TRUE(handler.AwaitUps(i));
    ASSERT_TRUE(server_handler.AwaitUps(i));
    int closed = 0;
    for (const std::string& port : ListeningAddresses()) {
      if (std::count(before.begin(), before.end(), port) > 0) continue;
      EXPECT_TRUE(AwaitClosed(port)) << port;
      ++closed;
    }
    EXPECT_EQ(closed, 1);
  }
  (*client)->Stop();
  (*server)->Stop();
}

}  // namespace
}  // namespace baton::kv_transfer
