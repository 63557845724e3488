#include "kv_transfer/wire.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "tests/kv_transfer/kv_fixture.h"

namespace baton::kv_transfer::wire {
namespace {

using ::testing::HasSubstr;

constexpr Incarnation kFrom{0x1122334455667788};
constexpr Incarnation kTo{0x99aabbccddeeff00};
constexpr TransferId kTransfer{0x0102030405060708};

ByteSpan Bytes(const std::string& s) {
  return ByteSpan(reinterpret_cast<const std::byte*>(s.data()), s.size());
}

std::vector<Message> EveryMessage() {
  v1::PeerHelloReply reply;
  *reply.mutable_hello() = MakeHello(v1::WORKER_ROLE_DECODE, 5, "d");
  reply.set_reason("num_layers (6 here, 8 there)");
  return {
      {kFrom, {}, MakeHello(v1::WORKER_ROLE_PREFILL, 4, "p")},
      {kFrom, kTo, reply},
      {kFrom, kTo, Kv{kTransfer, 0xa1b2c3d4, {5, 6, 7}}},
      {kFrom, kTo,
       Commit{kTransfer, 0xa1b2c3d4, 2, 3, WireEncoding::kFp8, 0x1000000002,
              0xfedcba9876543210, CommitRecord{-1, 17, 40}}},
      {kFrom, kTo, CommitAck{kTransfer, 2, TransferOutcome::kChecksumMismatch}},
      {kFrom, kTo, Abort{kTransfer, 3, TransferOutcome::kDeadlineExceeded}},
      {kFrom, kTo, AbortAck{kTransfer, 4}},
      {kFrom, kTo, Probe{0x1122, 5}},
      {kFrom, kTo, ProbeReply{0x1122, 6}},
  };
}

TEST(WireTest, EveryMessageSurvivesTheTrip) {
  for (const Message& message : EveryMessage()) {
    const std::string bytes = Encode(message);
    EXPECT_LE(bytes.size(), kMaxHeaderBytes);
    auto decoded = Decode(Bytes(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->from, message.from);
    EXPECT_EQ(decoded->to, message.to);
    EXPECT_EQ(decoded->body.index(), message.body.index());
    EXPECT_EQ(Encode(*decoded), bytes);
  }
}

// As docs/wire_format.md shows them, byte by byte.
TEST(WireTest, KvIsThoseBytes) {
  EXPECT_EQ(absl::BytesToHexString(
                Encode({kFrom, kTo, Kv{kTransfer, 0xa1b2c3d4, {5, 6, 7}}})),
            "42544e31"
            "02"
            "03"
            "0000"
            "8877665544332211"
            "00ffeeddccbbaa99"
            "0807060504030201"
            "d4c3b2a1"
            "05000000"
            "06000000"
            "07000000"
            "00000000");
}

TEST(WireTest, CommitIsThoseBytes) {
  EXPECT_EQ(absl::BytesToHexString(Encode(
                {kFrom, kTo,
                 Commit{kTransfer, 1, 2, 3, WireEncoding::kInt8, 0x1000000002,
                        0xfedcba9876543210, CommitRecord{-1, 17, 40}}})),
            "42544e31"
            "02"
            "04"
            "0000"
            "8877665544332211"
            "00ffeeddccbbaa99"
            "0807060504030201"
            "01000000"
            "02000000"
            "03000000"
            "01000000"
            "ffffffff"
            "11000000"
            "28000000"
            "0200000010000000"
            "1032547698badcfe");
}

TEST(WireTest, EveryShorterOrLongerMessageIsRefused) {
  for (const Message& message : EveryMessage()) {
    const std::string bytes = Encode(message);
    for (size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_FALSE(Decode(Bytes(bytes.substr(0, n))).ok()) << n;
    }
    EXPECT_FALSE(Decode(Bytes(bytes + '\0')).ok());
  }
}

TEST(WireTest, ErrorsSayWhatIsWrong) {
  const std::string good = Encode({kFrom, kTo, AbortAck{kTransfer, 4}});
  const auto error = [](std::string bytes) {
    return std::string(Decode(Bytes(bytes)).status().message());
  };
  std::string bytes = good;
  bytes[0] ^= 1;
  EXPECT_THAT(error(bytes), HasSubstr("not a message of Baton"));
  bytes = good;
  bytes[4] = 9;
  EXPECT_THAT(error(bytes), HasSubstr("version 9, expected 2"));
  bytes = good;
  bytes[5] = 77;
  EXPECT_THAT(error(bytes), HasSubstr("unknown type 77"));
  bytes = Encode(
      {kFrom, kTo, Abort{kTransfer, 4, TransferOutcome::kDeadlineExceeded}});
  bytes[bytes.size() - 4] = 100;
  EXPECT_THAT(error(bytes), HasSubstr("unknown outcome"));
  bytes[bytes.size() - 4] = 0;  // an abort because all is well
  EXPECT_THAT(error(bytes), HasSubstr("unknown outcome"));
  bytes = Encode({kFrom, kTo, Kv{kTransfer, 4, {5, 6, 7}}});
  bytes[bytes.size() - 4] = 3;
  EXPECT_THAT(error(bytes), HasSubstr("unknown encoding"));
}

TEST(WireTest, HelloOfAnotherVersionIsDecoded) {
  std::string bytes =
      Encode({kFrom, {}, MakeHello(v1::WORKER_ROLE_PREFILL, 4, "p")});
  bytes[4] = 3;
  EXPECT_TRUE(Decode(Bytes(bytes)).ok());
}

TEST(WireTest, HelloLengthIsBounded) {
  std::string bytes =
      Encode({kFrom, {}, MakeHello(v1::WORKER_ROLE_PREFILL, 4, "p")});
  bytes[kPrefixBytes] = '\xff';
  EXPECT_FALSE(Decode(Bytes(bytes)).ok());
  bytes[kPrefixBytes + 3] = '\x7f';
  EXPECT_FALSE(Decode(Bytes(bytes)).ok());
}

// Any bytes give a message or an error; run under the sanitizers.
TEST(WireTest, MutatedMessagesNeverCrash) {
  std::mt19937_64 random(20240611);
  const std::vector<Message> messages = EveryMessage();
  int decoded = 0;
  for (int round = 0; round < 50000; ++round) {
    std::string bytes = Encode(messages[random() % messages.size()]);
    const int mutations = 1 + random() % 4;
    for (int i = 0; i < mutations && !bytes.empty(); ++i) {
      switch (random() % 4) {
        case 0:
          bytes[random() % bytes.size()] = static_cast<char>(random());
          break;
        case 1:
          bytes.resize(random() % (bytes.size() + 1));
          break;
        case 2:
          bytes.insert(random() % bytes.size(), 1 + random() % 16,
                       static_cast<char>(random()));
          break;
        case 3:
          bytes[random() % bytes.size()] ^= 1 << (random() % 8);
          break;
      }
    }
    // A copy on the heap of exactly this size, so that a read past the end is
    // seen.
    const std::vector<std::byte> exact(Bytes(bytes).begin(),
                                       Bytes(bytes).end());
    decoded += Decode(exact).ok();
  }
  EXPECT_GT(decoded, 0);
}

}  // namespace
}  // namespace baton::kv_transfer::wire
