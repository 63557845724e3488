#include "kv_transfer/transports/local/local_wire.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::kv_transfer::local_wire {
namespace {

using ::testing::HasSubstr;

ByteSpan Bytes(const std::string& s) {
  return ByteSpan(reinterpret_cast<const std::byte*>(s.data()), s.size());
}
std::string Text(ByteSpan bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
// "01 ff" of "\x01\xff".
std::string Hex(const std::string& bytes) {
  std::string out;
  for (unsigned char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    if (!out.empty()) out += ' ';
    out += kDigits[c >> 4];
    out += kDigits[c & 15];
  }
  return out;
}

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TEST(LocalWireTest, DatagramsAreAsDocumented) {
  EXPECT_EQ(Hex(EncodeOffer({{RegionId{3}, 0x1122334455667788}})),
            "62 61 74 6f 6e 20 6b 76 20 6c 6f 63 61 6c 20 31 "
            "01 00 00 00 00 00 00 00 "
            "03 00 00 00 00 00 00 00 88 77 66 55 44 33 22 11");
  EXPECT_EQ(Hex(EncodeMessage("ab")), "01 00 00 00 02 00 00 00 61 62");
  EXPECT_EQ(Hex(EncodePayload("ab", {{RegionId{2}, 0x1000, 0x2000}})),
            "02 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 "
            "02 00 00 00 00 00 00 00 00 10 00 00 00 00 00 00 "
            "00 20 00 00 00 00 00 00 61 62");
  EXPECT_EQ(Hex(EncodeDone(5)), "03 00 00 00 05 00 00 00");
}

TEST(LocalWireTest, DatagramsSurviveTheTrip) {
  const auto offer =
      DecodeOffer(Bytes(EncodeOffer({{RegionId{0}, 5}, {RegionId{7}, 6}})));
  ASSERT_TRUE(offer.ok()) << offer.status();
  ASSERT_EQ(offer->size(), 2u);
  EXPECT_EQ((*offer)[1].id, RegionId{7});
  EXPECT_EQ((*offer)[1].length, 6u);
  EXPECT_TRUE(DecodeOffer(Bytes(EncodeOffer({}))).ok());

  const std::string header(kMaxHeaderBytes, 'h');
  const std::string message = EncodeMessage(header);
  auto decoded = Decode(Bytes(message));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Text(std::get<Message>(*decoded).header), header);

  const std::vector<Extent> extents(kMaxPayloadExtents, {RegionId{1}, 9, 10});
  const std::string payload = EncodePayload(header, extents);
  EXPECT_EQ(payload.size(), kMaxDatagramBytes);
  decoded = Decode(Bytes(payload));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Payload>(*decoded).bytes, 640u);
  EXPECT_EQ(std::get<Payload>(*decoded).extents.size(), extents.size());
  EXPECT_EQ(Text(std::get<Payload>(*decoded).header), header);

  decoded = Decode(Bytes(EncodeDone(7)));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<Done>(*decoded).count, 7u);
}

TEST(LocalWireTest, WhatIsWrongIsSaid) {
  const auto why = [](const std::string& bytes) {
    const auto decoded = Decode(Bytes(bytes));
    EXPECT_EQ(decoded.status().code(), kInvalid);
    return std::string(decoded.status().message());
  };
  EXPECT_THAT(why(""), HasSubstr("too short"));
  EXPECT_THAT(why("abc"), HasSubstr("too short"));
  EXPECT_THAT(why(EncodeMessage("")), HasSubstr("length of a message"));
  EXPECT_THAT(why(EncodeMessage("abc") + "d"),
              HasSubstr("length of a message"));
  EXPECT_THAT(why(EncodeMessage(std::string(kMaxHeaderBytes + 1, 'x'))),
              HasSubstr("length of a message"));
  EXPECT_THAT(why(EncodePayload("h", {})), HasSubstr("payload of 0 extents"));
  EXPECT_THAT(why(EncodePayload(
                  "h", std::vector<Extent>(65, Extent{RegionId{0}, 0, 1}))),
              HasSubstr("payload of 65 extents"));
  EXPECT_THAT(why(EncodePayload("h", {{RegionId{0}, 0, 0}})),
              HasSubstr("extent of 0 bytes"));
  EXPECT_THAT(why(EncodePayload("h", {{RegionId{0}, 0, ~uint64_t{0}}})),
              HasSubstr("extent of 18446744073709551615 bytes"));
  EXPECT_THAT(why(EncodePayload("h", {{RegionId{0}, 0, kMaxPayloadBytes},
                                      {RegionId{0}, 0, 1}})),
              HasSubstr("payload of 67108865 bytes"));
  EXPECT_THAT(why(EncodePayload("", {{RegionId{0}, 0, 1}})),
              HasSubstr("length of a payload's header"));
  EXPECT_THAT(why(EncodeDone(0)), HasSubstr("done"));
  EXPECT_THAT(why(EncodeDone(1) + "x"), HasSubstr("done"));
  EXPECT_THAT(why(std::string("\x09\0\0\0\x01\0\0\0", 8)), HasSubstr("type 9"));

  EXPECT_EQ(DecodeOffer(Bytes("GET / HTTP/1.1\r\n")).status().code(), kInvalid);
  EXPECT_EQ(DecodeOffer(Bytes("baton kv local 2")).status().code(), kInvalid);
  EXPECT_EQ(DecodeOffer(Bytes("baton kv local 1")).status().code(), kInvalid);
  EXPECT_EQ(DecodeOffer(Bytes(EncodeOffer(Offer(17)))).status().code(),
            kInvalid);
  EXPECT_EQ(DecodeOffer(Bytes(EncodeOffer(Offer(2)) + "x")).status().code(),
            kInvalid);
}

TEST(LocalWireTest, AnyBytesAreSafe) {
  std::mt19937 random(5);
  const std::string seeds[] = {
      EncodeOffer({{RegionId{0}, 4096}, {RegionId{1}, 8192}}),
      EncodeMessage("some header"),
      EncodePayload("header", {{RegionId{0}, 0, 4096}, {RegionId{1}, 64, 64}}),
      EncodeDone(3)};
  for (int i = 0; i < 40000; ++i) {
    std::string bytes = seeds[random() % 4];
    for (int n = random() % 4; n >= 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
    // A copy of its own size, so that reading past it is seen.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    const ByteSpan span(reinterpret_cast<const std::byte*>(exact.data()),
                        exact.size());
    const auto offer = DecodeOffer(span);
    if (offer.ok()) {
      EXPECT_LE(offer->size(), 16u);
    }
    const auto datagram = Decode(span);
    if (!datagram.ok()) continue;
    if (const auto* payload = std::get_if<Payload>(&*datagram)) {
      EXPECT_LE(payload->bytes, kMaxPayloadBytes);
      EXPECT_LE(payload->header.size(), span.size());
    }
  }
}

}  // namespace
}  // namespace baton::kv_transfer::local_wire
