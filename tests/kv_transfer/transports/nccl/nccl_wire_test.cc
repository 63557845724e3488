#include "kv_transfer/transports/nccl/nccl_wire.h"

#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::kv_transfer::nccl_wire {
namespace {

using ::testing::ElementsAre;
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

TEST(NcclWireTest, MessagesAreAsDocumented) {
  EXPECT_EQ(Hex(EncodeJoin("id")),
            "01 00 00 00 02 00 00 00 "
            "62 61 74 6f 6e 20 6b 76 20 6e 63 63 6c 20 31 0a 69 64");
  EXPECT_EQ(Hex(EncodeReady()), "02 00 00 00 00 00 00 00");
  EXPECT_EQ(Hex(EncodeMessage("ab")), "03 00 00 00 00 00 00 00 61 62");
  EXPECT_EQ(Hex(EncodeOffer(0x1122334455667788, {0x1000, 0x2000}, "ab")),
            "04 00 00 00 02 00 00 00 88 77 66 55 44 33 22 11 "
            "00 10 00 00 00 20 00 00 61 62");
  EXPECT_EQ(Hex(EncodeRefuse(7)),
            "05 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00");
  EXPECT_EQ(Hex(EncodeAccept(7, 9, {0x3000})),
            "06 00 00 00 01 00 00 00 07 00 00 00 00 00 00 00 "
            "09 00 00 00 00 00 00 00 00 30 00 00");
  EXPECT_EQ(Hex(EncodeTurn(7, 9)),
            "07 00 00 00 00 00 00 00 07 00 00 00 00 00 00 00 "
            "09 00 00 00 00 00 00 00");
}

TEST(NcclWireTest, MessagesSurviveTheTrip) {
  const std::string join = EncodeJoin(std::string(128, 'u'));
  auto decoded = Decode(Bytes(join));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Text(std::get<Join>(*decoded).unique_id), std::string(128, 'u'));

  decoded = Decode(Bytes(EncodeReady()));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(std::holds_alternative<Ready>(*decoded));

  const std::string message = EncodeMessage("hello");
  decoded = Decode(Bytes(message));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(Text(std::get<Message>(*decoded).header), "hello");

  const std::string header(100, 'h');
  const std::string offer =
      EncodeOffer(5, Lengths(kMaxExtents, 1 << 18), header);
  EXPECT_EQ(offer.size(), kMaxOverheadBytes + header.size());
  decoded = Decode(Bytes(offer));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Offer>(*decoded).number, 5u);
  EXPECT_EQ(std::get<Offer>(*decoded).bytes, uint64_t{kMaxExtents} << 18);
  EXPECT_EQ(std::get<Offer>(*decoded).lengths.size(), kMaxExtents);
  EXPECT_EQ(Text(std::get<Offer>(*decoded).header), header);

  decoded = Decode(Bytes(EncodeRefuse(6)));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Refuse>(*decoded).number, 6u);

  decoded = Decode(Bytes(EncodeAccept(7, 8, {10, 20})));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Accept>(*decoded).number, 7u);
  EXPECT_EQ(std::get<Accept>(*decoded).turn, 8u);
  EXPECT_EQ(std::get<Accept>(*decoded).bytes, 30u);
  EXPECT_THAT(std::get<Accept>(*decoded).lengths, ElementsAre(10, 20));

  decoded = Decode(Bytes(EncodeTurn(9, 10)));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<Turn>(*decoded).number, 9u);
  EXPECT_EQ(std::get<Turn>(*decoded).turn, 10u);
}

TEST(NcclWireTest, WhatIsWrongIsSaid) {
  const auto why = [](const std::string& bytes) {
    const auto decoded = Decode(Bytes(bytes));
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument)
        << Hex(bytes);
    return std::string(decoded.status().message());
  };
  EXPECT_THAT(why(""), HasSubstr("too short"));
  EXPECT_THAT(why("abc"), HasSubstr("too short"));
  EXPECT_THAT(why(std::string("\x09\0\0\0\0\0\0\0", 8)), HasSubstr("type 9"));
  // A hand-off without this transport.
  EXPECT_THAT(why("BTN1 and so on"), HasSubstr("type 827216962"));
  std::string other_version = EncodeJoin("id");
  other_version[22] = '2';
  EXPECT_THAT(why(other_version), HasSubstr("another transport protocol"));
  EXPECT_THAT(why(EncodeJoin("")), HasSubstr("unique id of 0 bytes"));
  EXPECT_THAT(why(EncodeJoin(std::string(129, 'u'))),
              HasSubstr("unique id of 129 bytes"));
  EXPECT_THAT(why(EncodeJoin("id") + "x"), HasSubstr("length of a unique id"));
  EXPECT_THAT(why(EncodeReady() + "x"), HasSubstr("ready"));
  EXPECT_THAT(why(EncodeMessage("")), HasSubstr("without a header"));
  EXPECT_THAT(why(EncodeOffer(1, {}, "h")), HasSubstr("of 0 extents"));
  EXPECT_THAT(why(EncodeOffer(1, Lengths(193, 1), "h")),
              HasSubstr("of 193 extents"));
  EXPECT_THAT(why(EncodeOffer(1, {5, 0}, "h")), HasSubstr("extent of 0 bytes"));
  EXPECT_THAT(why(EncodeOffer(1, {1 << 26, 1}, "h")),
              HasSubstr("payload of 67108865 bytes"));
  EXPECT_THAT(why(EncodeOffer(1, Lengths(64, 0xffffffff), "h")),
              HasSubstr("payload of 274877906880 bytes"));
  EXPECT_THAT(why(EncodeOffer(1, {5}, "")), HasSubstr("without a header"));
  EXPECT_THAT(why(EncodeOffer(1, {5, 6}, "").substr(0, 20)),
              HasSubstr("lengths of extents"));
  EXPECT_THAT(why(EncodeRefuse(1) + "x"), HasSubstr("refusal"));
  EXPECT_THAT(why(EncodeRefuse(1).substr(0, 15)), HasSubstr("refusal"));
  EXPECT_THAT(why(EncodeAccept(1, 1, {5}) + "x"),
              HasSubstr("length of an accept"));
  EXPECT_THAT(why(EncodeAccept(1, 1, {})), HasSubstr("of 0 extents"));
  EXPECT_THAT(why(EncodeTurn(1, 1).substr(0, 23)), HasSubstr("turn"));
}

TEST(NcclWireTest, AnyBytesAreSafe) {
  std::mt19937 random(5);
  const std::string seeds[] = {
      EncodeJoin("some id"),   EncodeReady(),
      EncodeMessage("header"), EncodeOffer(3, {4096, 100}, "header"),
      EncodeRefuse(3),         EncodeAccept(3, 4, {100, 4096}),
      EncodeTurn(3, 4)};
  int good = 0, bad = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string bytes = seeds[random() % std::size(seeds)];
    for (uint32_t n = random() % 4; n > 0; --n) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    if (random() % 4 == 0) bytes.resize(random() % (bytes.size() + 8));
    const auto decoded = Decode(Bytes(bytes));
    (decoded.ok() ? good : bad) += 1;
    if (!decoded.ok()) continue;
    if (const auto* offer = std::get_if<Offer>(&*decoded)) {
      EXPECT_LE(offer->bytes, kMaxPayloadBytes);
      EXPECT_LE(offer->lengths.size(), kMaxExtents);
      EXPECT_FALSE(offer->header.empty());
    }
  }
  EXPECT_GT(good, 1000);
  EXPECT_GT(bad, 1000);
}

}  // namespace
}  // namespace baton::kv_transfer::nccl_wire
