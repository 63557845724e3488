// TLS between two ends of a pair of sockets, which the test reads and changes
// what goes over as a network could.
#include "kv_transfer/transports/tcp/tls_stream.h"

#include <sys/socket.h>

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/string_view.h"
#include "common/scoped_fd.h"
#include "tests/support/test_certificates.h"

namespace baton::kv_transfer::tls_stream_test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// Header, kind of what is inside, and tag of AES-GCM (RFC 8446 section 5.2).
constexpr size_t kRecordOverhead = 5 + 1 + 16;
// A KeyUpdate: a handshake message of four bytes and one (section 4.6.3).
constexpr size_t kKeyUpdateBytes = kRecordOverhead + 5;

// `bytes` cut into pieces of these sizes, the last one what is left.
std::vector<iovec> Cut(std::string& bytes, const std::vector<size_t>& sizes) {
  std::vector<iovec> pieces;
  size_t at = 0;
  for (const size_t size : sizes) {
    const size_t n = std::min(size, bytes.size() - at);
    pieces.push_back({bytes.data() + at, n});
    at += n;
  }
  if (at < bytes.size()) {
    pieces.push_back({bytes.data() + at, bytes.size() - at});
  }
  return pieces;
}

void DropFront(std::vector<iovec>& pieces, uint64_t bytes) {
  while (!pieces.empty() && bytes >= pieces.front().iov_len) {
    bytes -= pieces.front().iov_len;
    pieces.erase(pieces.begin());
  }
  if (bytes == 0) return;
  iovec& first = pieces.front();
  first.iov_base = static_cast<char*>(first.iov_base) + bytes;
  first.iov_len -= bytes;
}

std::string RandomBytes(size_t count) {
  std::mt19937_64 random(7);
  std::string bytes(count, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class TlsStreamTest : public testing::Test {
 protected:
  struct End {
    ScopedFd socket;
    std::unique_ptr<TcpStream> stream;

    absl::StatusOr<bool> Handshake() { return stream->Handshake(socket.get()); }
    absl::StatusOr<uint64_t> Write(const std::vector<iovec>& pieces) {
      return stream->Write(socket.get(), pieces);
    }
    absl::StatusOr<uint64_t> Write(const std::string& bytes) {
      return Write(
          std::vector<iovec>{{const_cast<char*>(bytes.data()), bytes.size()}});
    }
    // What there is, of `most` bytes.
    absl::StatusOr<std::string> Read(size_t most) {
      std::string bytes(most, '\0');
      const iovec piece = {bytes.data(), bytes.size()};
      const auto n = stream->Read(socket.get(), {&piece, 1});
      if (!n.ok()) return n.status();
      bytes.resize(*n);
      return bytes;
    }
  };

  void Open(const tls::PemContents& client, const tls::PemContents& server,
            uint64_t records_per_key = kRecordsPerKey) {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    client_.socket = ScopedFd(ends[0]);
    server_.socket = ScopedFd(ends[1]);
    const auto at_client = MakeMemberContext(client);
    const auto at_server = MakeMemberContext(server);
    ASSERT_TRUE(at_client.ok()) << at_client.status();
    ASSERT_TRUE(at_server.ok()) << at_server.status();
    client_.stream =
        MakeTlsStream(at_client->get(), TlsSide::kConnects, records_per_key);
    server_.stream =
        MakeTlsStream(at_server->get(), TlsSide::kListens, records_per_key);
  }
  void OpenPair(uint64_t records_per_key = kRecordsPerKey) {
    Open(*members_.Files()->Get(), *members_.Files()->Get(), records_per_key);
  }
  // Until both are through, or one fails.
  absl::Status ShakeHands() {
    bool client = false, server = false;
    for (int turns = 0; turns < 10 && (!client || !server); ++turns) {
      for (End* end : {&client_, &server_}) {
        const auto over = end->Handshake();
        if (!over.ok()) return over.status();
        (end == &client_ ? client : server) = *over;
      }
    }
    EXPECT_TRUE(client && server);
    return absl::OkStatus();
  }

  // What goes from one end to the other, whose `sizes` the pieces have there.
  std::string Move(End& from, End& to, std::string bytes,
                   const std::vector<size_t>& written,
                   const std::vector<size_t>& read) {
    std::string got(bytes.size(), '\0');
    std::vector<iovec> rest = Cut(bytes, written), room = Cut(got, read);
    uint64_t total = 0;
    for (int idle = 0; total < bytes.size() && idle < 3;) {
      const auto taken = from.Write(rest);
      EXPECT_TRUE(taken.ok()) << taken.status();
      if (!taken.ok()) return got;
      DropFront(rest, *taken);
      const auto n = to.stream->Read(to.socket.get(), room);
      EXPECT_TRUE(n.ok()) << n.status();
      if (!n.ok()) return got;
      DropFront(room, *n);
      total += *n;
      idle = *taken + *n == 0 ? idle + 1 : 0;
    }
    EXPECT_EQ(total, bytes.size());
    EXPECT_FALSE(from.stream->HasUnsent());
    return got;
  }

  // The lengths of the records that wait for `end`, which stay.
  static std::vector<size_t> Waiting(End& end) {
    std::string bytes(1 << 20, '\0');
    const ssize_t n = recv(end.socket.get(), bytes.data(), bytes.size(),
                           MSG_DONTWAIT | MSG_PEEK);
    std::vector<size_t> records;
    for (ssize_t at = 0; at + 5 <= n;) {
      const size_t length = static_cast<unsigned char>(bytes[at + 3]) * 256u +
                            static_cast<unsigned char>(bytes[at + 4]);
      records.push_back(5 + length);
      at += static_cast<ssize_t>(5 + length);
    }
    return records;
  }

  test::ClusterMembers members_;
  End client_, server_;
};

TEST_F(TlsStreamTest, BytesComeAsTheyWent) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  const std::string bytes = RandomBytes(3'000'001);
  const std::vector<size_t> even = {1 << 20, 1 << 20};
  const std::vector<size_t> odd = {1, 0, 16384, 16385, 7, 300'000, 2};
  EXPECT_EQ(Move(client_, server_, bytes, even, even), bytes);
  EXPECT_EQ(Move(server_, client_, bytes, even, odd), bytes);
  EXPECT_EQ(Move(client_, server_, bytes, odd, even), bytes);
  EXPECT_EQ(Move(server_, client_, bytes, odd, {}), bytes);
}

// A full socket is waited for, and nothing is lost or encrypted twice.
TEST_F(TlsStreamTest, WaitsForAFullSocket) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  std::string bytes = RandomBytes(5 << 20);
  std::vector<iovec> rest = Cut(bytes, {});
  while (true) {
    const auto taken = client_.Write(rest);
    ASSERT_TRUE(taken.ok());
    DropFront(rest, *taken);
    if (client_.stream->HasUnsent()) break;
  }
  ASSERT_FALSE(rest.empty());
  // Takes no more, not even into its own memory.
  EXPECT_EQ(*client_.Write(rest), 0);
  std::string got;
  while (got.size() < bytes.size()) {
    const auto some = server_.Read(100'000);
    ASSERT_TRUE(some.ok()) << some.status();
    got += *some;
    const auto taken = client_.Write(rest);
    ASSERT_TRUE(taken.ok());
    DropFront(rest, *taken);
    ASSERT_FALSE(some->empty() && *taken == 0 && !client_.stream->HasUnsent());
  }
  EXPECT_TRUE(got == bytes);
}

TEST_F(TlsStreamTest, SaysThatItHasMoreThanTheSocketKnows) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  EXPECT_FALSE(server_.stream->HasUnread());
  ASSERT_EQ(*client_.Write("several"), 7);
  ASSERT_EQ(*client_.Write("records"), 7);
  EXPECT_EQ(*server_.Read(3), "sev");
  EXPECT_TRUE(server_.stream->HasUnread());
  EXPECT_EQ(*server_.Read(4), "eral");
  EXPECT_TRUE(server_.stream->HasUnread());
  EXPECT_EQ(*server_.Read(100), "records");
  EXPECT_FALSE(server_.stream->HasUnread());
  EXPECT_EQ(*server_.Read(100), "");
}

// Half a record is nothing to go on with.
TEST_F(TlsStreamTest, APartOfARecordIsNotUnread) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  ASSERT_EQ(*client_.Write("whole"), 5);
  std::string record(kRecordOverhead + 5, '\0');
  ASSERT_EQ(recv(server_.socket.get(), record.data(), record.size(), 0),
            static_cast<ssize_t>(record.size()));
  ASSERT_EQ(send(client_.socket.get(), record.data(), 10, 0), 10);
  EXPECT_EQ(*server_.Read(1), "");
  EXPECT_FALSE(server_.stream->HasUnread());
  ASSERT_GT(send(client_.socket.get(), &record[10], record.size() - 10, 0), 0);
  EXPECT_EQ(*server_.Read(100), "whole");
}

TEST_F(TlsStreamTest, ThrowsAwayWhatNobodyWants) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  const std::string bytes = RandomBytes(100'000);
  ASSERT_EQ(*client_.Write(bytes), bytes.size());
  uint64_t skipped = 0;
  while (skipped < 70'001) {
    const auto n = server_.stream->Skip(server_.socket.get(), 70'001 - skipped);
    ASSERT_TRUE(n.ok() && *n > 0) << n.status();
    skipped += *n;
  }
  EXPECT_EQ(skipped, 70'001);
  EXPECT_TRUE(*server_.Read(100'000) == bytes.substr(70'001));
  EXPECT_EQ(*server_.stream->Skip(server_.socket.get(), 5), 0);
}

// Each end gives itself a new key after so many records, in both directions.
TEST_F(TlsStreamTest, NoKeyIsUsedForTooLong) {
  OpenPair(/*records_per_key=*/4);
  ASSERT_TRUE(ShakeHands().ok());
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) ASSERT_EQ(*client_.Write("eight bytes "), 12);
    int updates = 0;
    for (const size_t record : Waiting(server_)) {
      updates += record == kKeyUpdateBytes;
      EXPECT_THAT(record, AnyOf(kKeyUpdateBytes, kRecordOverhead + 12));
    }
    EXPECT_EQ(updates, 2);
    std::string all;
    for (int i = 0; i < 8; ++i) all += "eight bytes ";
    EXPECT_EQ(*server_.Read(1000), all);
    // What it wants of the other end goes the other way.
    EXPECT_EQ(Move(server_, client_, all, {3}, {}), all);
  }
}

TEST_F(TlsStreamTest, WhatIsChangedOnTheWayIsNotRead) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  ASSERT_EQ(*client_.Write(std::string(1000, 'k')), 1000);
  std::string record(2000, '\0');
  const ssize_t n = recv(server_.socket.get(), record.data(), record.size(), 0);
  ASSERT_EQ(n, static_cast<ssize_t>(1000 + kRecordOverhead));
  record[500] = static_cast<char>(record[500] ^ 1);
  ASSERT_EQ(send(client_.socket.get(), record.data(), n, 0), n);
  const auto read = server_.Read(1000);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("TLS: "));
}

// What came before it is.
TEST_F(TlsStreamTest, AFaultComesAfterWhatWasSaid) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  ASSERT_EQ(*client_.Write("good"), 4);
  ASSERT_EQ(*client_.Write("changed"), 7);
  std::string records(1000, '\0');
  const ssize_t n =
      recv(server_.socket.get(), records.data(), records.size(), 0);
  ASSERT_EQ(n, static_cast<ssize_t>(2 * kRecordOverhead + 4 + 7));
  records[n - 1] = static_cast<char>(records[n - 1] ^ 1);
  ASSERT_EQ(send(client_.socket.get(), records.data(), n, 0), n);
  EXPECT_EQ(*server_.Read(1000), "good");
  EXPECT_TRUE(server_.stream->HasUnread());
  EXPECT_EQ(server_.Read(1000).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(TlsStreamTest, TheEndComesAfterWhatWasSaid) {
  OpenPair();
  ASSERT_TRUE(ShakeHands().ok());
  ASSERT_EQ(*client_.Write("last words"), 10);
  client_.socket = ScopedFd();
  EXPECT_EQ(*server_.Read(100), "last words");
  const auto after = server_.Read(100);
  EXPECT_EQ(after.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(after.status().message(), "the peer hung up");
  EXPECT_EQ(server_.stream->Skip(server_.socket.get(), 1).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(server_.Write("to nobody").status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(TlsStreamTest, AnotherClustersMemberIsNotTalkedTo) {
  test::ClusterMembers others("others");
  Open(*others.Files()->Get(), *members_.Files()->Get());
  const absl::Status refused = ShakeHands();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("certificate verify failed"));
  // The other end hears of it as well.
  const auto told = server_.Handshake();
  EXPECT_EQ(told.status().code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(told.status().message()), HasSubstr("unknown ca"));
}

// One that trusts us, whom we do not trust.
TEST_F(TlsStreamTest, TheListeningSideChecksAsWell) {
  test::ClusterMembers others("others");
  tls::PemContents credulous = *others.Files()->Get();
  credulous.client_ca = members_.ca().certificate();
  Open(credulous, *members_.Files()->Get());
  const absl::Status refused = ShakeHands();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("certificate verify failed"));
  // It believed to be through, and hears of it when it reads.
  const auto read = client_.Read(1);
  EXPECT_EQ(read.status().code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TlsStreamTest, ACertificateThatHasEndedIsNoGood) {
  Open(*members_.Files()->Get(),
       *members_.Files({.hosts = "", .valid_for = -absl::Minutes(1)})->Get());
  const absl::Status refused = ShakeHands();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("expired"));
}

TEST_F(TlsStreamTest, MembersNeedACa) {
  tls::PemContents alone = *members_.Files()->Get();
  alone.client_ca.clear();
  EXPECT_EQ(MakeMemberContext(alone).status().code(),
            absl::StatusCode::kInvalidArgument);
  tls::PemContents mixed = *members_.Files()->Get();
  mixed.private_key = members_.Files()->Get()->private_key;
  EXPECT_THAT(std::string(MakeMemberContext(mixed).status().message()),
              HasSubstr("key"));
}

// Whatever a stranger says, the handshake fails or waits for more.
TEST_F(TlsStreamTest, OtherBytesAreNoHandshake) {
  std::mt19937 random(11);
  const tls::PemContents files = *members_.Files()->Get();
  int failed = 0;
  for (int round = 0; round < 200; ++round) {
    Open(files, files);
    // Mutilated hellos, and noise that begins as one.
    ASSERT_TRUE(client_.Handshake().ok());
    std::string hello(4096, '\0');
    const ssize_t n = recv(server_.socket.get(), hello.data(), hello.size(), 0);
    ASSERT_GT(n, 100);
    hello.resize(n);
    for (int i = 0; i < 3; ++i) {
      hello[1 + random() % (hello.size() - 1)] = static_cast<char>(random());
    }
    if (round % 4 == 0) hello = "\x16" + RandomBytes(random() % 300);
    send(client_.socket.get(), hello.data(), hello.size(), 0);
    const auto over = server_.Handshake();
    EXPECT_FALSE(over.ok() && *over);
    failed += !over.ok();
  }
  EXPECT_GT(failed, 50);
}

}  // namespace
}  // namespace baton::kv_transfer::tls_stream_test
