#include "kv_transfer/transports/tcp/tcp_wire.h"

#include <string>

#include <gtest/gtest.h>

#include "kv_transfer/transports/mailbox.h"

namespace baton::kv_transfer::tcp_wire {
namespace {

ByteSpan Bytes(absl::string_view s) {
  return ByteSpan(reinterpret_cast<const std::byte*>(s.data()), s.size());
}

TEST(TcpWireTest, FrameIsLengthsAndHeader) {
  // As docs/wire_format.md has it.
  EXPECT_EQ(EncodeFrame("abc", 0x01020304),
            std::string("\x03\0\0\0\x04\x03\x02\x01"
                        "abc",
                        11));
  const auto lengths =
      DecodeLengths(Bytes(EncodeFrame("abc", 77)).first(kLengthsBytes));
  ASSERT_TRUE(lengths.ok()) << lengths.status();
  EXPECT_EQ(lengths->header_bytes, 3u);
  EXPECT_EQ(lengths->payload_bytes, 77u);
}

TEST(TcpWireTest, LengthsHaveBounds) {
  const auto decode = [](uint32_t header, uint32_t payload) {
    std::string bytes;
    for (const uint32_t value : {header, payload}) {
      for (int i = 0; i < 4; ++i) {
        bytes.push_back(static_cast<char>(value >> (8 * i)));
      }
    }
    return DecodeLengths(Bytes(bytes)).status();
  };
  EXPECT_TRUE(decode(1, 0).ok());
  EXPECT_TRUE(decode(kMaxHeaderBytes, kMaxPayloadBytes).ok());
  for (const auto& [header, payload] : {std::pair<uint32_t, uint32_t>{0, 0},
                                        {0, 5},
                                        {kMaxHeaderBytes + 1, 0},
                                        {UINT32_MAX, 0},
                                        {1, kMaxPayloadBytes + 1},
                                        {1, UINT32_MAX}}) {
    EXPECT_EQ(decode(header, payload).code(),
              absl::StatusCode::kInvalidArgument)
        << header << ", " << payload;
  }
  EXPECT_FALSE(DecodeLengths(Bytes("short")).ok());
}

TEST(TcpWireTest, GreetingMayComeInPieces) {
  for (size_t n = 0; n <= kGreeting.size(); ++n) {
    EXPECT_TRUE(CheckGreeting(Bytes(kGreeting.substr(0, n))).ok()) << n;
  }
  EXPECT_TRUE(CheckGreeting(Bytes(std::string(kGreeting) + "more")).ok());
  for (const char* other :
       {"x", "GET / HTTP/1.1", "baton kv door 1\n", "baton kv tcp 2\n"}) {
    EXPECT_EQ(CheckGreeting(Bytes(other)).code(),
              absl::StatusCode::kInvalidArgument)
        << other;
  }
}

TEST(TcpWireTest, KnowsWhatOneSaysThatTakesTlsAlone) {
  const size_t first = std::string("baton kv tcp t").size();
  for (size_t n = first; n <= kTlsOnly.size(); ++n) {
    EXPECT_EQ(CheckGreeting(Bytes(kTlsOnly.substr(0, n))).code(),
              absl::StatusCode::kFailedPrecondition)
        << n;
  }
}

}  // namespace
}  // namespace baton::kv_transfer::tcp_wire
