#include "engine/gguf_blocks.h"

#include <cstdint>
#include <cstring>

#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/mxfp4.h"

namespace baton::engine {
namespace {

float HalfAt(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return F16ToFloat(bits);
}

// 32 weights in 4 or 5 bits. A scale (half); where they are not symmetric, a
// minimum (half); the fifth bits, a word with that of weight i in bit i; 16
// bytes. The low halves of the bytes are the first 16 weights, the high halves
// the others. Without a minimum, half of the range is below zero.
template <int kBits, bool kHasMinimum>
struct Small {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 18 + (kHasMinimum ? 2 : 0) + (kBits - 4) * 4;

  static void Read(const uint8_t* block, float* out) {
    const float scale = HalfAt(block);
    const float minimum = kHasMinimum ? HalfAt(block + 2) : 0.0f;
    uint32_t fifth = 0;
    if (kBits == 5) std::memcpy(&fifth, block + kBytes - 20, sizeof(fifth));
    const uint8_t* const packed = block + kBytes - 16;
    for (int i = 0; i < 32; ++i) {
      const int low = i < 16 ? packed[i] & 15 : packed[i - 16] >> 4;
      const int q = low | static_cast<int>(fifth >> i & 1) << 4;
      out[i] = kHasMinimum ? static_cast<float>(q) * scale + minimum
                           : static_cast<float>(q - (1 << (kBits - 1))) * scale;
    }
  }
};

// 32 weights: a scale (half), 32 signed bytes.
struct Q8_0 {
  static constexpr int kElements = 32;
  static constexpr int kBytes = 34;

  static void Read(const uint8_t* block, float* out) {
    const float scale = HalfAt(block);
    for (int i = 0; i < 32; ++i) {
      out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
    }
  }
};

// 256 weights in 8 groups of 32, in 4 or 5 bits: a scale and a scale of minima
// (halves), 12 bytes with a 6-bit scale and minimum of each group, 32 bytes
// with the fifth bits (bit g of byte i is that of weight i in group g), 128
// bytes. Each 32 of those are two groups: their low halves, then their high
// halves.
template <int kBits>
struct Grouped {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 144 + (kBits - 4) * 32;

  static void Read(const uint8_t* block, float* out) {
    const float scale = HalfAt(block);
    const float min_scale = HalfAt(block + 2);
    const uint8_t* const six = block + 4;
    const uint8_t* const fifth = block + 16;
    for (int group = 0; group < 8; ++group) {
      int group_scale, group_min;
      if (group < 4) {
        group_scale = six[group] & 63;
        group_min = six[group + 4] & 63;
      } else {
        // Four bits in the last bytes, two left over in the first ones.
        group_scale = (six[group + 4] & 15) | (six[group - 4] >> 6) << 4;
        group_min = (six[group + 4] >> 4) | (six[group] >> 6) << 4;
      }
      const float factor = scale * static_cast<float>(group_scale);
      const float minimum = min_scale * static_cast<float>(group_min);
      const uint8_t* const packed = block + kBytes - 128 + group / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        int q = group % 2 == 0 ? packed[i] & 15 : packed[i] >> 4;
        if (kBits == 5) q |= (fifth[i] >> group & 1) << 4;
        out[group * 32 + i] = factor * static_cast<float>(q) - minimum;
      }
    }
  }
};

// 256 weights in 16 groups of 16: 128 bytes with the low four bits, 64 with the
// high two, 16 signed scales, a scale (half) of all. Halves of 128 weights lie
// one after another; in each, a byte of low bits serves the weights i and
// i + 64, and a byte of high bits i, i + 32, i + 64 and i + 96.
struct Q6K {
  static constexpr int kElements = 256;
  static constexpr int kBytes = 210;

  static void Read(const uint8_t* block, float* out) {
    const float scale = HalfAt(block + 208);
    for (int i = 0; i < kElements; ++i) {
      const int half = i / 128, within = i % 128;
      const int low_byte = block[half * 64 + within % 64];
      const int high_byte = block[128 + half * 32 + within % 32];
      const int low = within < 64 ? low_byte & 15 : low_byte >> 4;
      const int high = (high_byte >> (within / 32 * 2)) & 3;
      const auto group_scale = static_cast<int8_t>(block[192 + i / 16]);
      out[i] = scale * static_cast<float>(group_scale) *
               static_cast<float>((low | high << 4) - 32);
    }
  }
};

// A scale, and numbers of which a byte has i and i + 16.
struct Mxfp4 {
  static constexpr int kElements = kMxfp4Group;
  static constexpr size_t kBytes = 17;
  static void Read(const uint8_t* block, float* out) {
    const float scale = E8m0ToFloat(block[0]);
    for (int i = 0; i < kElements / 2; ++i) {
      const unsigned pair = block[1 + i];
      out[i] = E2m1ToFloat(pair & 0xf) * scale;
      out[i + kElements / 2] = E2m1ToFloat(pair >> 4) * scale;
    }
  }
};

template <typename Format>
void ReadBlocks(absl::Span<const std::byte> blocks, absl::Span<float> out) {
  const size_t count = blocks.size() / Format::kBytes;
  CHECK_EQ(count * Format::kBytes, blocks.size());
  CHECK_EQ(count * Format::kElements, out.size());
  const auto* const bytes = reinterpret_cast<const uint8_t*>(blocks.data());
  for (size_t i = 0; i < count; ++i) {
    Format::Read(bytes + i * Format::kBytes,
                 out.data() + i * Format::kElements);
  }
}

}  // namespace

void ReadGgufBlocks(WeightEncoding encoding, absl::Span<const std::byte> blocks,
                    absl::Span<float> out) {
  switch (encoding) {
    case WeightEncoding::kGgufQ4_0:
      return ReadBlocks<Small<4, false>>(blocks, out);
    case WeightEncoding::kGgufQ4_1:
      return ReadBlocks<Small<4, true>>(blocks, out);
    case WeightEncoding::kGgufQ5_0:
      return ReadBlocks<Small<5, false>>(blocks, out);
    case WeightEncoding::kGgufQ5_1:
      return ReadBlocks<Small<5, true>>(blocks, out);
    case WeightEncoding::kGgufQ8_0:
      return ReadBlocks<Q8_0>(blocks, out);
    case WeightEncoding::kGgufQ4K:
      return ReadBlocks<Grouped<4>>(blocks, out);
    case WeightEncoding::kGgufQ5K:
      return ReadBlocks<Grouped<5>>(blocks, out);
    case WeightEncoding::kGgufQ6K:
      return ReadBlocks<Q6K>(blocks, out);
    case WeightEncoding::kGgufMxfp4:
      return ReadBlocks<Mxfp4>(blocks, out);
    case WeightEncoding::kPlain:
    case WeightEncoding::kGptq:
    case WeightEncoding::kAwq:
    case WeightEncoding::kFp8:
    case WeightEncoding::kMxfp4:
    case WeightEncoding::kByInput:
    case WeightEncoding::kPacked:
    case WeightEncoding::kPart:
    case WeightEncoding::kTurnedHeads:
      break;
  }
  LOG(FATAL) << WeightEncodingName(encoding);
}

}  // namespace baton::engine
