// Two TCP transports with TLS between them, or on one side only: who is let in,
// what either is told, and what somebody in between can read.
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "kv_transfer/transports/socket_address.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"
#include "kv_transfer/transports/tcp/tcp_wire.h"
#include "kv_transfer/transports/tcp_socket.h"
#include "tests/kv_transfer/transports/local/local_node.h"
#include "tests/support/manual_clock.h"
#include "tests/support/test_certificates.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;

// Somebody between two transports who writes down all that goes over.
class Wiretap final {
 public:
  explicit Wiretap(const std::string& to)
      : to_(*ParseSocketAddress(to)),
        listener_(*ListenTcp(*MakeSocketAddress("127.0.0.1", 0))),
        thread_([this] { Run(); }) {}
  ~Wiretap() {
    ended_ = true;
    thread_.join();
  }

  std::string address() const {
    return absl::StrCat("127.0.0.1:", listener_.port);
  }
  // Ends the connection; what went over it in both directions.
  std::string Heard() {
    ended_ = true;
    thread_.join();
    thread_ = std::thread([] {});
    return heard_;
  }

 private:
  void Run() {
    pollfd visitor = {listener_.socket.get(), POLLIN, 0};
    while (poll(&visitor, 1, 10) != 1) {
      if (ended_) return;
    }
    const ScopedFd near(accept(listener_.socket.get(), nullptr, nullptr));
    const ScopedFd far = *BeginConnectTcp(to_);
    pollfd connected = {far.get(), POLLOUT, 0};
    ASSERT_EQ(poll(&connected, 1, 20'000), 1);
    std::string buffer(1 << 16, '\0');
    while (!ended_) {
      pollfd ends[] = {{near.get(), POLLIN, 0}, {far.get(), POLLIN, 0}};
      poll(ends, 2, 10);
      for (int i = 0; i < 2; ++i) {
        if (ends[i].revents == 0) continue;
        const ssize_t n =
            recv(ends[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (n <= 0) return;
        heard_.append(buffer.data(), static_cast<size_t>(n));
        PassOn(ends[1 - i].fd, {buffer.data(), static_cast<size_t>(n)});
      }
    }
  }
  static void PassOn(int to, absl::string_view bytes) {
    while (!bytes.empty()) {
      pollfd room = {to, POLLOUT, 0};
      if (poll(&room, 1, 20'000) != 1) return;
      const ssize_t n =
          send(to, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno != EAGAIN) return;
      if (n > 0) bytes.remove_prefix(static_cast<size_t>(n));
    }
  }

  const SocketAddress to_;
  const TcpListener listener_;
  std::string heard_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

class TcpTlsTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kRegionBytes = uint64_t{1} << 20;

  struct Side {
    Side(const TcpTls& tls, bool listen)
        : memory(kRegionBytes, '.'),
          transport(*CreateTcpTransport({.listen = listen, .tls = tls})) {
      region = *transport->RegisterRegion(
          absl::MakeSpan(reinterpret_cast<std::byte*>(memory.data()),
                         memory.size()),
          kNoDescriptor);
      journal.on_payload = [this](uint64_t bytes) {
        return Landing{{{region, 0, bytes}}, 1};
      };
      transport->Start(&journal);
    }
    ~Side() { transport->Stop(); }

    std::string memory;
    Journal journal;
    RegionId region{};
    std::unique_ptr<Transport> transport;
  };

  void Serve(const TcpTls& tls) { server_ = std::make_unique<Side>(tls, true); }
  // Whether it comes up at `address`, or at the server's.
  bool Connects(const TcpTls& tls, std::string address = "") {
    if (address.empty()) address = server_->transport->properties().address;
    client_ = std::make_unique<Side>(tls, false);
    const auto peer = client_->transport->Connect(address);
    EXPECT_TRUE(peer.ok()) << peer.status();
    EXPECT_TRUE(client_->journal.AwaitEither("up", "down"));
    return client_->journal.Count("up") > 0;
  }
  std::string WhyNot() { return std::string(client_->journal.why().message()); }
  // Sends a payload, whose bytes arrive.
  void CheckServes() {
    const std::string kv = "a page of keys and values";
    std::memcpy(client_->memory.data(), kv.data(), kv.size());
    ASSERT_TRUE(client_->transport
                    ->Send(client_->journal.peer(),
                           AsBytes("words of a header"),
                           {{client_->region, 0, kRegionBytes}}, 5)
                    .ok());
    ASSERT_TRUE(client_->journal.Await("sent 5"));
    ASSERT_TRUE(server_->journal.Await("landed"));
    EXPECT_TRUE(server_->memory == client_->memory);
  }

  test::ClusterMembers members_;
  std::unique_ptr<Side> server_, client_;
};

TEST_F(TcpTlsTest, NothingGoesOverInTheClear) {
  // Also that the wiretap would hear it.
  for (const bool encrypted : {false, true}) {
    const auto tls = [&] {
      return encrypted ? TcpTls{members_.Files()} : TcpTls{};
    };
    Serve(tls());
    Wiretap wiretap(server_->transport->properties().address);
    ASSERT_TRUE(Connects(tls(), wiretap.address())) << WhyNot();
    CheckServes();
    const std::string heard = wiretap.Heard();
    EXPECT_GT(heard.size(), kRegionBytes);
    for (const char* words : {"a page of keys and values", "words of a header",
                              "......", "baton kv"}) {
      EXPECT_EQ(absl::StrContains(heard, words), !encrypted) << words;
    }
  }
}

TEST_F(TcpTlsTest, WhoSpeaksPlainTextIsToldWhy) {
  Serve({members_.Files()});
  EXPECT_EQ(server_->transport->properties().name, "tcp/tls");
  EXPECT_FALSE(Connects({}));
  EXPECT_EQ(WhyNot(), "the peer takes KV over TLS only (--kv-encryption)");
  EXPECT_EQ(server_->journal.lines(), std::vector<std::string>());
  // Others are served.
  ASSERT_TRUE(Connects({members_.Files()})) << WhyNot();
  CheckServes();
}

TEST_F(TcpTlsTest, WhoWantsTlsWhereThereIsNoneIsToldWhy) {
  Serve({});
  EXPECT_FALSE(Connects({members_.Files()}));
  EXPECT_THAT(WhyNot(), HasSubstr("it may take KV in plain text only"));
  EXPECT_EQ(server_->journal.lines(), std::vector<std::string>());
  ASSERT_TRUE(Connects({})) << WhyNot();
  CheckServes();
}

// On the way from one to the other: who listens takes both.
TEST_F(TcpTlsTest, OneThatDoesNotInsistTakesBoth) {
  Serve({.files = members_.Files(), .required = false});
  ASSERT_TRUE(Connects({})) << WhyNot();
  EXPECT_EQ(client_->transport->PeerProperties(client_->journal.peer()).name,
            "tcp");
  CheckServes();
  ASSERT_TRUE(Connects({members_.Files()})) << WhyNot();
  EXPECT_EQ(client_->transport->PeerProperties(client_->journal.peer()).name,
            "tcp/tls");
  // As such a one connects in plain text.
  ASSERT_TRUE(Connects({.files = members_.Files(), .required = false}));
  EXPECT_EQ(client_->transport->PeerProperties(client_->journal.peer()).name,
            "tcp");
}

TEST_F(TcpTlsTest, OtherClustersAreNotTalkedTo) {
  Serve({members_.Files()});
  test::ClusterMembers others("others");
  EXPECT_FALSE(Connects({others.Files()}));
  EXPECT_THAT(WhyNot(), HasSubstr("certificate verify failed"));
  EXPECT_EQ(client_->journal.why().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(server_->journal.lines(), std::vector<std::string>());
}

// New files are taken for new connections, and those that stand go on.
TEST_F(TcpTlsTest, NewCertificatesNeedNoRestart) {
  test::ManualClock clock;
  const auto files = members_.Files(&clock);
  Serve({files});
  ASSERT_TRUE(Connects({members_.Files()})) << WhyNot();
  const std::unique_ptr<Side> first = std::move(client_);

  test::ClusterMembers next("next");
  test::WriteClusterTls(
      std::filesystem::path(files->paths().certificate).parent_path(),
      next.ca().certificate(), next.ca().Issue({.hosts = ""}));
  clock.Advance(absl::Seconds(2));
  EXPECT_FALSE(Connects({members_.Files()}));
  ASSERT_TRUE(Connects({next.Files()})) << WhyNot();
  CheckServes();
  ASSERT_TRUE(first->transport
                  ->Send(first->journal.peer(), AsBytes("still here"), {}, 9)
                  .ok());
  EXPECT_TRUE(server_->journal.Await("message still here"));
}

TEST_F(TcpTlsTest, FilesThatAreNoMembersAreAnError) {
  const test::CertificateAndKey own = members_.ca().Issue();
  const test::ScratchDir scratch;
  const std::string certificate = absl::StrCat(scratch.path(), "/cert.pem");
  const std::string key = absl::StrCat(scratch.path(), "/key.pem");
  test::WriteFileAtOnce(certificate, own.certificate);
  test::WriteFileAtOnce(key, own.key);
  const auto files =
      tls::PemFiles::Open({.certificate = certificate, .key = key});
  ASSERT_TRUE(files.ok()) << files.status();
  const auto transport = CreateTcpTransport({.tls = {*files}});
  EXPECT_EQ(transport.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(transport.status().message()), HasSubstr("CA"));
}

// A visitor who begins a handshake and stops holds up nobody, whether he stays
// or goes.
TEST_F(TcpTlsTest, HalfAHandshakeHoldsUpNobody) {
  Serve({members_.Files()});
  const SocketAddress address =
      *ParseSocketAddress(server_->transport->properties().address);
  std::vector<ScopedFd> visitors;
  for (const absl::string_view words :
       {"\x16", "\x16\x03\x01\x02", "", "baton kv", "\x16\x03\x01\x40\x01\x01",
        "\x17\x03\x03\x01\x01 no hello", "GET / HTTP/1.1\r\n\r\n"}) {
    visitors.push_back(*BeginConnectTcp(address));
    pollfd connected = {visitors.back().get(), POLLOUT, 0};
    ASSERT_EQ(poll(&connected, 1, 20'000), 1);
    if (!words.empty()) {
      ASSERT_GT(
          send(visitors.back().get(), words.data(), words.size(), MSG_NOSIGNAL),
          0);
    }
  }
  ASSERT_TRUE(Connects({members_.Files()})) << WhyNot();
  CheckServes();
  visitors.clear();
  ASSERT_TRUE(Connects({members_.Files()})) << WhyNot();
  // The server hears of it a moment after the client.
  EXPECT_TRUE(server_->journal.Await("up", 2));
  EXPECT_EQ(server_->journal.Count("up"), 2);
}

}  // namespace
}  // namespace baton::kv_transfer
