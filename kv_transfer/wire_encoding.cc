#include "kv_transfer/wire_encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

static_assert(std::endian::native == std::endian::little,
              "KV goes over the wire as it lies in memory");

constexpr float kInt8Max = 127.0f;
constexpr float kFp8Max = 448.0f;

float FromBf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  // A NaN keeps its upper bits; those that are made here have the quiet one.
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// REQUIRES: finite, |value| <= kFp8Max but for rounding.
uint8_t ToE4m3(float value) {
  const auto sign =
      static_cast<uint8_t>(std::bit_cast<uint32_t>(value) >> 24 & 0x80);
  const float magnitude = std::min(std::fabs(value), kFp8Max);
  if (magnitude < 0x1p-6f) {  // no exponent of its own: multiples of 2^-9
    return sign | static_cast<uint8_t>(std::lrint(magnitude * 0x1p9f));
  }
  auto bits = std::bit_cast<uint32_t>(magnitude);
  bits += 0x7ffff + ((bits >> 20) & 1);
  // Exponent (bias 127) and the three upper bits of the fraction, to bias 7.
  return sign | static_cast<uint8_t>((bits >> 20) - (120u << 3));
}

float FromE4m3(uint8_t byte) {
  const int exponent = byte >> 3 & 15;
  const int fraction = byte & 7;
  float magnitude = 0;
  if ((byte & 0x7f) == 0x7f) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = static_cast<float>(fraction) * 0x1p-9f;
  } else {
    magnitude = std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
  }
  return (byte & 0x80) != 0 ? -magnitude : magnitude;
}

const std::array<float, 256>& E4m3Values() {
  static const auto* const kValues = [] {
    auto* values = new std::array<float, 256>;
    for (int i = 0; i < 256; ++i) {
      (*values)[i] = FromE4m3(static_cast<uint8_t>(i));
    }
    return values;
  }();
  return *kValues;
}

// The largest magnitude, or NaN when a value is not finite.
float Largest(const std::byte* part, int64_t elements) {
  uint16_t largest = 0;
  for (int64_t i = 0; i < elements; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, part + 2 * i, 2);
    // Magnitudes compare as their bits do.
    largest = std::max<uint16_t>(largest, bits & 0x7fff);
  }
  const float value = FromBf16(largest);
  return std::isfinite(value) ? value : std::numeric_limits<float>::quiet_NaN();
}

}  // namespace

const char* WireEncodingName(WireEncoding encoding) {
  switch (encoding) {
    case WireEncoding::kExact:
      return "exact";
    case WireEncoding::kInt8:
      return "int8";
    case WireEncoding::kFp8:
      return "fp8";
  }
  return "unknown";
}

std::optional<WireEncoding> WireEncodingFromName(absl::string_view name) {
  for (WireEncoding encoding :
       {WireEncoding::kExact, WireEncoding::kInt8, WireEncoding::kFp8}) {
    if (name == WireEncodingName(encoding)) return encoding;
  }
  return std::nullopt;
}

int64_t EncodedPageBytes(const PageMap& map, WireEncoding encoding) {
  if (encoding == WireEncoding::kExact) return map.page_bytes();
  return static_cast<int64_t>(map.parts().size() * sizeof(float)) +
         map.page_bytes() / 2;
}

void EncodePage(const PageMap& map, WireEncoding encoding, ByteSpan page,
                absl::Span<std::byte> out) {
  CHECK(encoding != WireEncoding::kExact);
  CHECK_EQ(static_cast<int64_t>(page.size()), map.page_bytes());
  CHECK_EQ(static_cast<int64_t>(out.size()), EncodedPageBytes(map, encoding));
  const float limit = encoding == WireEncoding::kInt8 ? kInt8Max : kFp8Max;
  std::byte* scale_out = out.data();
  std::byte* byte_out = out.data() + map.parts().size() * sizeof(float);
  const std::byte* part = page.data();
  for (int64_t part_bytes : map.parts()) {
    const int64_t elements = part_bytes / 2;
    const float scale = Largest(part, elements) / limit;
    std::memcpy(scale_out, &scale, sizeof(scale));
    scale_out += sizeof(scale);
    const bool usable = scale > 0;  // else all zero, or all NaN by the scale
    for (int64_t i = 0; i < elements; ++i) {
      uint16_t bits = 0;
      std::memcpy(&bits, part + 2 * i, 2);
      const float x =
          usable ? std::clamp(FromBf16(bits) / scale, -limit, limit) : 0.0f;
      byte_out[i] =
          encoding == WireEncoding::kInt8
              ? static_cast<std::byte>(static_cast<int8_t>(std::lrint(x)))
              : std::byte{ToE4m3(x)};
    }
    byte_out += elements;
    part += part_bytes;
  }
}

void DecodePage(const PageMap& map, WireEncoding encoding, ByteSpan encoded,
                absl::Span<std::byte> page) {
  CHECK(encoding != WireEncoding::kExact);
  CHECK_EQ(static_cast<int64_t>(page.size()), map.page_bytes());
  CHECK_EQ(static_cast<int64_t>(encoded.size()),
           EncodedPageBytes(map, encoding));
  const std::array<float, 256>& fp8 = E4m3Values();
  const std::byte* scale_in = encoded.data();
  const std::byte* byte_in =
      encoded.data() + map.parts().size() * sizeof(float);
  std::byte* part = page.data();
  for (int64_t part_bytes : map.parts()) {
    const int64_t elements = part_bytes / 2;
    float scale = 0;
    std::memcpy(&scale, scale_in, sizeof(scale));
    scale_in += sizeof(scale);
    for (int64_t i = 0; i < elements; ++i) {
      const auto byte = static_cast<uint8_t>(byte_in[i]);
      const float x = encoding == WireEncoding::kInt8
                          ? static_cast<float>(static_cast<int8_t>(byte))
                          : fp8[byte];
      const uint16_t bits = ToBf16(scale * x);
      std::memcpy(part + 2 * i, &bits, 2);
    }
    byte_in += elements;
    part += part_bytes;
  }
}

}  // namespace baton::kv_transfer
