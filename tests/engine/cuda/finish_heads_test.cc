// How keys and values become bytes with scales on a device: int8 against what
// the CPU backend writes, fp8 against engine/e4m3.h.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cuda/row_kernels.h"
#include "engine/e4m3.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/fp8_pages.h"

namespace baton::engine::cuda {
namespace {

class FinishHeadsTest : public DeviceTest,
                        public testing::WithParamInterface<KvDtype> {
 protected:
  static constexpr int32_t kHeads = 3;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kRows = 37;

  // Of a head, the first 2 * `turning` elements turn; all, unless it says so.
  void Make(int32_t head_dim, int32_t block_size, int32_t turning = 0) {
    turning_ = turning > 0 ? turning : head_dim / 2;
    layout_ = {};
    layout_.num_layers = 1;
    layout_.num_blocks = 6;
    layout_.block_size = block_size;
    layout_.num_kv_heads = kKvHeads;
    layout_.head_dim = head_dim;
    layout_.dtype = GetParam();
    heads_per_row_ = kHeads + 2 * kKvHeads;
    qkv_ = Floats(
        RandomBf16(int64_t{kRows} * heads_per_row_ * head_dim, head_dim));
    // Values that are no bfloat16, and sizes of all kinds.
    for (size_t i = 0; i < qkv_.size(); ++i) {
      const size_t row = i / (heads_per_row_ * head_dim);
      qkv_[i] *= 1.0f / 3 * std::ldexp(1.0f, static_cast<int>(row % 9) - 4);
    }
    std::fill_n(Head(5, kHeads), head_dim, 0.0f);
    std::fill_n(Head(6, kHeads + kKvHeads), head_dim, 1e-36f);
    rope_.clear();
    for (int32_t position = 0; position < kRows; ++position) {
      for (int32_t i = 0; i < head_dim; ++i) {
        const int32_t pair = i % (head_dim / 2);
        const double angle =
            pair < turning_ ? position * std::pow(0.7, pair) : 0.0;
        rope_.push_back(
            static_cast<float>(i == pair ? std::cos(angle) : std::sin(angle)));
      }
    }
  }

  float* Head(int32_t row, int32_t head) {
    return qkv_.data() +
           (int64_t{row} * heads_per_row_ + head) * layout_.head_dim;
  }

  // All rows are a sequence's tokens.
  std::vector<std::byte> OnDevice() {
    std::vector<RowPlace> places(kRows + 1);  // the last is not there
    for (int32_t row = 0; row < kRows; ++row) places[row] = {row, 0};
    FinishHeadsArgs args;
    args.qkv = Put(qkv_);
    args.places = Put(places);
    args.rows = kRows + 1;
    args.num_heads = kHeads;
    args.num_kv_heads = kKvHeads;
    args.head_dim = layout_.head_dim;
    args.turning_pairs = turning_;
    args.stored_head_dim = layout_.stored_head_dim();
    args.rope = Put(rope_);
    args.queries =
        Take<uint16_t>(int64_t{kRows} * kHeads * layout_.stored_head_dim());
    args.pages = Put(std::vector<std::byte>(layout_.total_bytes()));
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.values_offset = layout_.ValuesOffset();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.kv_dtype = layout_.dtype;
    args.block_tables = Put(blocks_);
    RunFinishHeads(args, stream().handle());
    return Get(args.pages, layout_.total_bytes());
  }

  // With the portable kernels, which round after each operation as the device
  // does.
  std::vector<std::byte> Expected() {
    const cpu::Kernels& kernels = *cpu::FindKernels("portable").value();
    std::vector<std::byte> memory(layout_.total_bytes());
    const cpu::KvPages pages(kernels, layout_, memory.data());
    const int32_t half = layout_.head_dim / 2;
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        const float* const x = Head(row, kHeads + head);
        std::vector<float> key(x, x + layout_.head_dim);
        const float* const cosines =
            rope_.data() + int64_t{row} * layout_.head_dim;
        kernels.rope(key.data(), cosines, cosines + half, turning_);
        const float* const value = Head(row, kHeads + kKvHeads + head);
        if (GetParam() == KvDtype::kInt8) {
          pages.WriteKey(0, blocks_, row, head, key.data());
          pages.WriteValue(0, blocks_, row, head, value);
        } else {
          WriteFp8(layout_, memory.data(), /*layer=*/0, blocks_, row, head,
                   KvPart::kKeys, RoundToFp8(key));
          WriteFp8(layout_, memory.data(), /*layer=*/0, blocks_, row, head,
                   KvPart::kValues,
                   RoundToFp8(absl::MakeConstSpan(value, layout_.head_dim)));
        }
      }
    }
    return memory;
  }

  float Scale(const std::vector<std::byte>& memory, int32_t position,
              int32_t head, int64_t offset) const {
    float scale;
    std::memcpy(
        &scale,
        memory.data() +
            layout_.PageOffset(0, blocks_[position / layout_.block_size]) +
            head * layout_.head_bytes() + offset +
            position % layout_.block_size * sizeof(float),
        sizeof(scale));
    return scale;
  }

  const std::vector<BlockId> blocks_ = {4, 1, 3};
  KvLayout layout_;
  int32_t heads_per_row_ = 0;
  int32_t turning_ = 0;  // pairs
  std::vector<float> qkv_;
  std::vector<float> rope_;
};

INSTANTIATE_TEST_SUITE_P(KvDtypes, FinishHeadsTest,
                         testing::Values(KvDtype::kInt8, KvDtype::kFp8),
                         [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

TEST_P(FinishHeadsTest, PagesAreThoseOfTheHostToTheBit) {
  for (const auto& [head_dim, block_size] :
       std::vector<std::pair<int32_t, int32_t>>{
           {10, 16}, {32, 32}, {80, 16}, {128, 128}, {256, 16}}) {
    Make(head_dim, block_size);
    const std::vector<std::byte> device = OnDevice();
    EXPECT_TRUE(device == Expected()) << head_dim << " " << block_size;
    EXPECT_EQ(Scale(device, 5, 0, layout_.KeyScalesOffset()), 0.0f);
    EXPECT_EQ(Scale(device, 6, 0, layout_.ValueScalesOffset()), 0.0f);
    EXPECT_GT(Scale(device, 6, 0, layout_.KeyScalesOffset()), 0.0f);
  }
}

TEST_P(FinishHeadsTest, PartsOfHeadsTurn) {
  for (const auto& [head_dim, turning] :
       std::vector<std::pair<int32_t, int32_t>>{{16, 4},
                                                {20, 1},
                                                {80, 30},
                                                {128, 32},
                                                {128, 40},
                                                {256, 128},
                                                {250, 60}}) {
    Make(head_dim, /*block_size=*/16, turning);
    EXPECT_TRUE(OnDevice() == Expected()) << head_dim << " " << turning;
  }
}

// A scale that is NaN says so, and touches no other token or head.
TEST_P(FinishHeadsTest, WhatIsNotFiniteHasAScaleThatIsNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Make(/*head_dim=*/48, /*block_size=*/16);
    const std::vector<std::byte> before = OnDevice();
    Head(9, kHeads + 1)[40] = bad;             // a key
    Head(20, kHeads + kKvHeads + 0)[7] = bad;  // a value
    const std::vector<std::byte> after = OnDevice();
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        for (const int64_t offset :
             {layout_.KeyScalesOffset(), layout_.ValueScalesOffset()}) {
          const bool is_key = offset == layout_.KeyScalesOffset();
          const float scale = Scale(after, row, head, offset);
          if (is_key ? row == 9 && head == 1 : row == 20 && head == 0) {
            EXPECT_TRUE(std::isnan(scale)) << row << " " << head;
          } else {
            EXPECT_EQ(scale, Scale(before, row, head, offset))
                << row << " " << head;
          }
        }
      }
    }
  }
}

class FinishHeadsFp8Test : public FinishHeadsTest {
 protected:
  static constexpr int32_t kDim = 128;

  // Rows of values whose factor and scale are one: the first is 448.
  void MakeValues(const std::vector<float>& values) {
    Make(kDim, /*block_size=*/16);
    ASSERT_LE(values.size(), size_t{kRows} * kKvHeads * (kDim - 1));
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        Head(row, kHeads + kKvHeads + head)[0] = kE4m3Max;
        std::fill_n(Head(row, kHeads + kKvHeads + head) + 1, kDim - 1, 0.0f);
      }
    }
    for (size_t i = 0; i < values.size(); ++i) *Value(i) = values[i];
  }
  float* Value(size_t i) {
    const auto head = static_cast<int32_t>(i / (kDim - 1));
    return Head(head / kKvHeads, kHeads + kKvHeads + head % kKvHeads) + 1 +
           i % (kDim - 1);
  }
  // What became of it.
  uint8_t Byte(std::vector<std::byte>& memory, size_t i) const {
    const auto head = static_cast<int32_t>(i / (kDim - 1));
    const auto element = static_cast<int32_t>(1 + i % (kDim - 1));
    const int32_t position = head / kKvHeads;
    return static_cast<uint8_t>(PartAt(layout_, memory.data(), /*layer=*/0,
                                       blocks_, position, head % kKvHeads,
                                       KvPart::kValues)[ElementPlace(
        layout_, position, element, KvPart::kValues)]);
  }
};

INSTANTIATE_TEST_SUITE_P(KvDtypes, FinishHeadsFp8Test,
                         testing::Values(KvDtype::kFp8), [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

// Each value of a byte, the middle between it and the next, and what is beside
// both; of both signs.
TEST_P(FinishHeadsFp8Test, RoundsAsTheHostDoes) {
  std::vector<float> values;
  for (int byte = 0; byte < 0x7e; ++byte) {
    const float low = E4m3ToFloat(static_cast<uint8_t>(byte));
    const float high = E4m3ToFloat(static_cast<uint8_t>(byte + 1));
    const float middle = (low + high) / 2;  // exact
    for (const float value :
         {low, std::nextafter(low, high), std::nextafter(middle, low), middle,
          std::nextafter(middle, high), std::nextafter(high, low), high}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  MakeValues(values);
  std::vector<std::byte> memory = OnDevice();
  EXPECT_EQ(Scale(memory, 0, 0, layout_.ValueScalesOffset()), 1.0f);
  std::vector<bool> seen(256);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t byte = Byte(memory, i);
    ASSERT_EQ(byte, FloatToE4m3(values[i])) << values[i];
    seen[byte] = true;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 254);
}

TEST_P(FinishHeadsFp8Test, NaNStaysNaN) {
  MakeValues({1.0f, std::numeric_limits<float>::quiet_NaN(), -2.0f});
  std::vector<std::byte> memory = OnDevice();
  EXPECT_EQ(Byte(memory, 0), FloatToE4m3(1.0f));
  EXPECT_EQ(Byte(memory, 1) & 0x7f, 0x7f);
  EXPECT_EQ(Byte(memory, 2), FloatToE4m3(-2.0f));
}

}  // namespace
}  // namespace baton::engine::cuda
