#include "kv_transfer/wire_encoding.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/shaped_cache.h"

namespace baton::kv_transfer {
namespace {

// Keys and values of two heads of 16 elements: four parts of 256 elements.
PageMap SmallMap() {
  const PageShape shape{.block_size = 16, .num_heads = 2};
  ShapedCache cache(1, 2, shape, {{1, 512}, {1, 512}});
  return *PageMap::Create(cache.geometry(), shape, shape);
}

std::vector<std::byte> Page(const std::vector<float>& values) {
  std::vector<std::byte> page(values.size() * 2);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto bits =
        static_cast<uint16_t>(std::bit_cast<uint32_t>(values[i]) >> 16);
    std::memcpy(page.data() + 2 * i, &bits, 2);
  }
  return page;
}

float At(const std::vector<std::byte>& page, size_t i) {
  uint16_t bits = 0;
  std::memcpy(&bits, page.data() + 2 * i, 2);
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

std::vector<std::byte> ThereAndBack(const PageMap& map, WireEncoding encoding,
                                    const std::vector<std::byte>& page) {
  std::vector<std::byte> encoded(EncodedPageBytes(map, encoding));
  EncodePage(map, encoding, page, absl::MakeSpan(encoded));
  std::vector<std::byte> back(page.size());
  DecodePage(map, encoding, encoded, absl::MakeSpan(back));
  return back;
}

TEST(WireEncodingTest, NamesGoBothWays) {
  for (const char* name : {"exact", "int8", "fp8"}) {
    ASSERT_TRUE(WireEncodingFromName(name).has_value());
    EXPECT_STREQ(WireEncodingName(*WireEncodingFromName(name)), name);
  }
  EXPECT_FALSE(WireEncodingFromName("fp4").has_value());
}

TEST(WireEncodingTest, TakesHalfOfTheBytesAndAScalePerPart) {
  const PageMap map = SmallMap();
  ASSERT_EQ(map.page_bytes(), 2048);
  EXPECT_EQ(EncodedPageBytes(map, WireEncoding::kExact), 2048);
  EXPECT_EQ(EncodedPageBytes(map, WireEncoding::kInt8), 1024 + 16);
}

// The error is at most half a step of the encoding, and bf16's rounding.
TEST(WireEncodingTest, ErrorIsBounded) {
  const PageMap map = SmallMap();
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (float magnitude : {1e-6f, 1.0f, 3e4f}) {
    std::vector<float> values(1024);
    for (float& v : values) v = normal(random) * magnitude;
    const auto page = Page(values);
    const auto int8 = ThereAndBack(map, WireEncoding::kInt8, page);
    const auto fp8 = ThereAndBack(map, WireEncoding::kFp8, page);
    for (size_t part = 0; part < 4; ++part) {
      float largest = 0;
      for (size_t i = part * 256; i < (part + 1) * 256; ++i) {
        largest = std::max(largest, std::fabs(At(page, i)));
      }
      for (size_t i = part * 256; i < (part + 1) * 256; ++i) {
        const float x = At(page, i);
        const float rounding = std::fabs(x) / 256 + largest * 1e-6f;
        EXPECT_LE(std::fabs(At(int8, i) - x), largest / 127 / 2 + rounding);
        // Three bits of fraction, or a multiple of 2^-9 / 448 of the largest.
        EXPECT_LE(std::fabs(At(fp8, i) - x),
                  std::max(std::fabs(x) / 16, largest / 448 / 1024) + rounding);
      }
    }
  }
}

TEST(WireEncodingTest, ExactWhereTheEncodingHasTheValue) {
  const PageMap map = SmallMap();
  std::vector<float> values(1024);
  for (size_t i = 0; i < 1024; ++i) {
    values[i] = static_cast<float>(static_cast<int>(i % 255) - 127);
  }
  // Largest magnitude 127 in every part: the scale is 1.
  const auto page = Page(values);
  EXPECT_EQ(ThereAndBack(map, WireEncoding::kInt8, page), page);
  // What e4m3 has, times a scale of 2: every byte but the two NaNs.
  for (size_t i = 0; i < 1024; ++i) {
    const int byte = static_cast<int>(i % 256);
    const int exponent = byte >> 3 & 15, fraction = byte & 7;
    float v = exponent == 0 ? std::ldexp(fraction, -9)
                            : std::ldexp(8 + fraction, exponent - 10);
    if ((byte & 0x7f) == 0x7f) v = 448;
    values[i] = (byte & 0x80) != 0 ? -2 * v : 2 * v;
  }
  EXPECT_EQ(ThereAndBack(map, WireEncoding::kFp8, Page(values)), Page(values));
}

TEST(WireEncodingTest, ZerosStayZeroAndWhatIsNotFiniteSpoilsItsPartOnly) {
  const PageMap map = SmallMap();
  std::vector<float> values(1024, 0.0f);
  values[256] = std::numeric_limits<float>::infinity();
  values[700] = std::numeric_limits<float>::quiet_NaN();
  for (WireEncoding encoding : {WireEncoding::kInt8, WireEncoding::kFp8}) {
    const auto back = ThereAndBack(map, encoding, Page(values));
    for (size_t i = 0; i < 1024; ++i) {
      const size_t part = i / 256;
      if (part == 1 || part == 2) {
        EXPECT_TRUE(std::isnan(At(back, i))) << i;
      } else {
        EXPECT_EQ(At(back, i), 0.0f) << i;
      }
    }
  }
}

// Any bytes decode to a page; run under the sanitizers.
TEST(WireEncodingTest, AnyBytesDecode) {
  const PageMap map = SmallMap();
  std::mt19937_64 random(11);
  std::vector<std::byte> page(map.page_bytes());
  for (int round = 0; round < 200; ++round) {
    for (WireEncoding encoding : {WireEncoding::kInt8, WireEncoding::kFp8}) {
      std::vector<std::byte> encoded(EncodedPageBytes(map, encoding));
      for (std::byte& b : encoded) b = static_cast<std::byte>(random());
      DecodePage(map, encoding, encoded, absl::MakeSpan(page));
    }
  }
}

}  // namespace
}  // namespace baton::kv_transfer
