// Tiles that the device makes of rows, beside those that the host makes of
// them: to the bit.
#include "engine/cuda/pack_tiles.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cuda/output_rows.h"
#include "engine/cuda/weight_format.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/host_tiles.h"
#include "tests/engine/grouped_matrix.h"

namespace baton::engine::cuda {
namespace {

// Rows of 16 bits or 32, and the matrix that they are.
struct StoredMatrix {
  StoredMatrix(DType type, int64_t rows, int32_t inputs) {
    bytes.resize(rows * inputs * DTypeBytes(type));
    matrix.rows = rows;
    matrix.columns = inputs;
    matrix.values.dtype = type;
    matrix.values.shape = {rows, inputs};
    matrix.values.bytes = bytes;
  }
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  void Set(int64_t i, float value) {
    if (matrix.values.dtype == DType::kF32) {
      std::memcpy(bytes.data() + i * 4, &value, 4);
      return;
    }
    // Of halves, those of the same bits: any will do.
    const uint16_t bits = FloatToBf16(value);
    std::memcpy(bytes.data() + i * 2, &bits, 2);
  }

  std::vector<std::byte> bytes;
  WeightMatrix matrix;
};

struct Tiles {
  std::vector<std::byte> bytes;
  std::vector<float> scales;
};

class PackTilesTest : public DeviceTest,
                      public testing::WithParamInterface<WeightFormat> {
 protected:
  Tiles ByDevice(const std::vector<OutputRows>& rows, int32_t inputs,
                 int32_t tiles) {
    std::vector<OutputRows> padded = rows;
    int64_t there = 0;
    for (const OutputRows& part : rows) there += part.count;
    padded.push_back({nullptr, 0, int64_t{tiles} * kTileOutputs - there});
    PackArgs args;
    args.type = CopiedType(rows, GetParam());
    const int64_t outputs = int64_t{tiles} * kTileOutputs;
    std::vector<std::byte> copied(outputs * inputs * DTypeBytes(args.type));
    CopyOutputs(padded, args.type, 0, outputs, inputs, copied.data());
    args.rows = Put(copied);
    if (HasSliceGrids(GetParam())) {
      std::vector<Int4Grid> grids(outputs * PaddedInputs(inputs) /
                                  kSliceInputs);
      CopyGrids(padded, 0, outputs, inputs, grids.data());
      args.grids = Put(grids);
    }
    args.tiles = tiles;
    args.inputs = inputs;
    args.format = GetParam();
    std::byte* const out = Put(std::vector<std::byte>(
        tiles * TileBytes(GetParam(), PaddedInputs(inputs)), std::byte{0xee}));
    args.out = out;
    const bool has_scales = HasOutputScales(GetParam());
    float* const scales =
        Put(args.type == DType::kF8E4M3 ? ScalesOf(padded)
                                        : std::vector<float>(outputs, -1.0f));
    args.scales = has_scales ? scales : nullptr;
    RunPackTiles(args, stream().handle());
    Tiles result;
    result.bytes =
        Get(out, tiles * TileBytes(GetParam(), PaddedInputs(inputs)));
    if (has_scales) result.scales = Get(scales, outputs);
    return result;
  }
  static Tiles ByHost(const std::vector<OutputRows>& rows, int32_t inputs,
                      int32_t tiles) {
    Tiles result;
    result.bytes.resize(tiles * TileBytes(GetParam(), PaddedInputs(inputs)));
    if (HasOutputScales(GetParam())) {
      result.scales.resize(int64_t{tiles} * kTileOutputs);
    }
    PackTiles(GetParam(), rows, inputs, 0, tiles, result.bytes.data(),
              result.scales.data());
    return result;
  }
  // Of the same bits, NaN among them.
  static void ExpectSame(const Tiles& device, const Tiles& host,
                         const std::string& what) {
    EXPECT_TRUE(device.bytes == host.bytes) << what;
    ASSERT_EQ(device.scales.size(), host.scales.size());
    for (size_t i = 0; i < host.scales.size(); ++i) {
      EXPECT_TRUE(device.scales[i] == host.scales[i] ||
                  (std::isnan(device.scales[i]) && std::isnan(host.scales[i])))
          << what << ": scale of " << i;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, PackTilesTest,
                         testing::ValuesIn(kWeightFormats),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST_P(PackTilesTest, TilesAreThoseOfTheHost) {
  std::mt19937 bits(5);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  for (const DType type : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const int32_t inputs : {64, 70, 57, 200, 1024}) {
      StoredMatrix a(type, 40, inputs);
      for (int64_t i = 0; i < 40 * inputs; ++i) {
        // Rows of very different sizes, one of them zero, and one element that
        // stands out.
        const int64_t row = i / inputs;
        float value = row == 3 ? 0.0f : normal(bits);
        value = std::ldexp(value, static_cast<int>(row * 7 % 60 - 30));
        if (i % 97 == 0) value *= 11.0f;
        a.Set(i, value);
      }
      // From within the matrix, with a gap, to a tile that is not full.
      const std::vector<OutputRows> rows = {
          {&a.matrix, 2, 25}, {nullptr, 0, 5}, {&a.matrix, 0, 9}};
      ExpectSame(ByDevice(rows, inputs, 3), ByHost(rows, inputs, 3),
                 absl::StrCat(DTypeName(type), " ", inputs));
    }
  }
}

// Every number that 16 bits can be, in rows of numbers of about one size, and
// what is no number at all.
TEST_P(PackTilesTest, OfEveryNumberOfSixteenBits) {
  constexpr int32_t kInputs = 256;
  constexpr int64_t kRows = 256;
  for (const DType type : {DType::kBf16, DType::kF16}) {
    StoredMatrix a(type, kRows, kInputs);
    for (int64_t i = 0; i < kRows * kInputs; ++i) {
      const auto number = static_cast<uint16_t>(i);
      std::memcpy(a.bytes.data() + i * 2, &number, 2);
    }
    const std::vector<OutputRows> rows = {{&a.matrix, 0, kRows}};
    const Tiles device = ByDevice(rows, kInputs, kRows / kTileOutputs);
    const Tiles host = ByHost(rows, kInputs, kRows / kTileOutputs);
    for (int32_t o = 0; o < kRows; ++o) {
      for (int32_t i = 0; i < kInputs; ++i) {
        const auto read = [&](const Tiles& tiles) {
          return ReadWeight(GetParam(), tiles.bytes.data(), tiles.scales.data(),
                            o, i, kInputs);
        };
        const float expected = read(host);
        const float value = read(device);
        if (std::isnan(expected)) {
          ASSERT_TRUE(std::isnan(value)) << DTypeName(type) << o << " " << i;
        } else {
          ASSERT_EQ(value, expected) << DTypeName(type) << o << " " << i;
        }
      }
    }
  }
}

// All but zero, and more than a scale can be.
TEST_P(PackTilesTest, OfExtremes) {
  constexpr int32_t kInputs = 128;
  constexpr float kExtremes[] = {0.0f,   -0.0f,  0x1p-149f, 0x1p-133f,
                                 1e-38f, 3e-37f, 1e30f,     3.4e38f};
  StoredMatrix a(DType::kF32, 16, kInputs);
  for (int64_t i = 0; i < 16 * kInputs; ++i) {
    const float extreme = kExtremes[i / kInputs % 8];
    a.Set(i, i % 3 == 0 ? extreme : -0.7f * extreme);
  }
  const std::vector<OutputRows> rows = {{&a.matrix, 0, 16}};
  ExpectSame(ByDevice(rows, kInputs, 1), ByHost(rows, kInputs, 1), "");
}

// What a checkpoint has in 4 bits is not rounded again, but for its scales.
TEST_P(PackTilesTest, KeepsTheGridsOfTheFile) {
  const bool int4 = GetParam() == WeightFormat::kInt4;
  const GroupedMatrix q(40, 320, 128, 4, 4);
  const std::vector<TestTensor> gptq = q.Gptq("m", 1, true);
  const std::vector<TestTensor> awq = q.Awq("m");
  // By themselves, and with a matrix that has no grids between two parts.
  StoredMatrix plain(DType::kBf16, 8, 320);
  for (int64_t i = 0; i < 8 * 320; ++i) {
    plain.Set(i, 0.01f * static_cast<float>(i * 37 % 101 - 50));
  }
  for (const WeightMatrix& source : {q.View(gptq, WeightEncoding::kGptq, 1),
                                     q.View(awq, WeightEncoding::kAwq, 0)}) {
    for (const bool mixed : {false, true}) {
      const std::vector<OutputRows> rows = {
          {&source, 3, 20},
          {mixed ? &plain.matrix : nullptr, 0, 8},
          {&source, 23, 17}};
      EXPECT_EQ(CopiedType(rows, GetParam()),
                int4 && !mixed ? DType::kU8 : DType::kF32);
      EXPECT_EQ(FormatOf(rows),
                mixed ? WeightFormat::kBf16 : WeightFormat::kInt4);
      const Tiles device = ByDevice(rows, 320, 3);
      ExpectSame(device, ByHost(rows, 320, 3), mixed ? "mixed" : "alone");
      for (int64_t o = 0; int4 && o < 45; ++o) {
        if (o >= 20 && o < 28) continue;
        for (int32_t i = 0; i < 320; ++i) {
          const float weight = q.Weight(o < 20 ? 3 + o : o - 5, i);
          ASSERT_NEAR(ReadWeight(GetParam(), device.bytes.data(),
                                 device.scales.data(), o, i, 320),
                      weight, std::fabs(weight) * 0x1p-8f)
              << o << " " << i;
        }
      }
    }
  }
}

// Scales of a file that are none, or far from the others of their output.
TEST_P(PackTilesTest, GridsOfTheFileMayBeNone) {
  constexpr uint16_t kScales[] = {0x0000, 0x8000, 0xa400, 0x0001,
                                  0x7bff, 0x2400, 0x0400, 0x2801};
  GroupedMatrix q(32, 200, 64, 4, 5);
  for (size_t i = 0; i < q.scales.size(); ++i) {
    // Groups of an output lie 32 apart, and have all pairs of them.
    q.scales[i] = kScales[(i * 5 + i / 32 * (1 + i % 7)) % 8];
  }
  const std::vector<TestTensor> gptq = q.Gptq("m", 1, true);
  const WeightMatrix source = q.View(gptq, WeightEncoding::kGptq, 1);
  const std::vector<OutputRows> rows = {{&source, 0, 32}};
  ExpectSame(ByDevice(rows, 200, 2), ByHost(rows, 200, 2), "finite");
  // Infinite, and no number.
  q.scales[3] = 0x7c00;
  q.scales[32 + 7] = 0x7e00;
  const std::vector<TestTensor> broken = q.Gptq("m", 1, true);
  const WeightMatrix other = q.View(broken, WeightEncoding::kGptq, 1);
  const std::vector<OutputRows> broken_rows = {{&other, 0, 32}};
  const Tiles device = ByDevice(broken_rows, 200, 2);
  const Tiles host = ByHost(broken_rows, 200, 2);
  if (GetParam() == WeightFormat::kInt4) {
    ExpectSame(device, host, "broken");
    EXPECT_TRUE(std::isnan(device.scales[3]));
    EXPECT_TRUE(std::isnan(device.scales[7]));
  }
}

// What a checkpoint has in e4m3 with a scale per output is not rounded again;
// with other scales, or in another format, it is what the numbers are.
TEST_P(PackTilesTest, KeepsWhatIsFp8InTheFile) {
  constexpr int32_t kInputs = 70;
  constexpr int64_t kRows = 20;
  StoredMatrix a(DType::kF8E4M3, kRows, kInputs);
  for (size_t i = 0; i < a.bytes.size(); ++i) {
    // No row's greatest is the greatest e4m3; one has a NaN.
    const auto byte = static_cast<uint8_t>(i * 7 % 251);
    a.bytes[i] = std::byte{
        static_cast<uint8_t>((byte & 0x7f) > 0x75 ? byte & 0x8f : byte)};
  }
  a.bytes[5 * kInputs + 3] = std::byte{0xff};
  std::vector<float> scales;
  for (int64_t i = 0; i < kRows; ++i) {
    scales.push_back(0.01f * static_cast<float>(1 + i));
  }
  a.matrix.encoding = WeightEncoding::kFp8;
  a.matrix.block_rows = 1;
  a.matrix.block_columns = kInputs;
  a.matrix.scales.dtype = DType::kF32;
  a.matrix.scales.bytes = absl::MakeSpan(
      reinterpret_cast<const std::byte*>(scales.data()), scales.size() * 4);
  const std::vector<OutputRows> rows = {{&a.matrix, 2, 18}};
  const bool keeps = GetParam() == WeightFormat::kFp8;
  EXPECT_EQ(CopiedType(rows, GetParam()), keeps ? DType::kF8E4M3 : DType::kF32);
  const int32_t padded = PaddedInputs(kInputs);
  const auto read = [&](const Tiles& tiles, int32_t output, int32_t input) {
    return ReadWeight(GetParam(), tiles.bytes.data(), tiles.scales.data(),
                      output, input, padded);
  };
  const Tiles device = ByDevice(rows, kInputs, 2);
  const Tiles host = ByHost(rows, kInputs, 2);
  for (int32_t o = 0; o < 2 * kTileOutputs; ++o) {
    std::vector<float> kept(padded, 0.0f);
    if (o < 18) {
      ReadRow(a.matrix, 2 + o, absl::MakeSpan(kept.data(), kInputs));
    }
    for (int32_t i = 0; i < padded; ++i) {
      const float expected = keeps ? kept[i] : read(host, o, i);
      if (o == 3 && (keeps || std::isnan(expected))) {
        ASSERT_TRUE(std::isnan(read(device, o, i))) << i;
      } else {
        ASSERT_EQ(read(device, o, i), expected) << o << " " << i;
      }
    }
  }
  // A scale for blocks of inputs is none of an output's.
  a.matrix.block_columns = 64;
  EXPECT_EQ(CopiedType(rows, GetParam()), DType::kF32);
}

// Rows of matrices of several types become float32 on their way, and heads
// whose halves are interleaved come in order.
TEST(OutputRowsTest, AreCopiedAsTheyAreWhereTheyAreAlike) {
  StoredMatrix wide(DType::kF32, 8, 3);
  StoredMatrix narrow(DType::kBf16, 8, 3);
  StoredMatrix heads(DType::kBf16, 8, 3);
  heads.matrix.interleaved_head = 4;
  for (int64_t i = 0; i < 24; ++i) {
    wide.Set(i, static_cast<float>(i));
    narrow.Set(i, static_cast<float>(100 + i));
    heads.Set(i, static_cast<float>(200 + i));
  }
  const auto copied = [](const std::vector<OutputRows>& some) {
    return CopiedType(some, WeightFormat::kFp8);
  };
  EXPECT_EQ(copied({{nullptr, 0, 3}}), DType::kF32);
  EXPECT_EQ(copied({{&wide.matrix, 0, 3}}), DType::kF32);
  EXPECT_EQ(copied({{&narrow.matrix, 0, 3}, {nullptr, 0, 1}}), DType::kBf16);
  EXPECT_EQ(copied({{&narrow.matrix, 0, 3}, {&wide.matrix, 0, 1}}),
            DType::kF32);
  const std::vector<OutputRows> rows = {
      {&narrow.matrix, 5, 2}, {nullptr, 0, 1}, {&heads.matrix, 4, 3}};
  ASSERT_EQ(copied(rows), DType::kBf16);
  // Without the first.
  std::vector<uint16_t> bits(5 * 3, 0xffff);
  CopyOutputs(rows, DType::kBf16, 1, 5, 3,
              reinterpret_cast<std::byte*>(bits.data()));
  // Heads have their halves next to each other in the file.
  const std::vector<float> expected = {118, 119, 120, 0,   0,   0,   212, 213,
                                       214, 218, 219, 220, 215, 216, 217};
  for (size_t i = 0; i < bits.size(); ++i) {
    EXPECT_EQ(Bf16ToFloat(bits[i]), expected[i]) << i;
  }
  std::vector<float> floats(2 * 3, -1.0f);
  CopyOutputs({{&narrow.matrix, 0, 1}, {&wide.matrix, 7, 1}}, DType::kF32, 0, 2,
              3, reinterpret_cast<std::byte*>(floats.data()));
  EXPECT_EQ(floats, (std::vector<float>{100, 101, 102, 21, 22, 23}));
}

}  // namespace
}  // namespace baton::engine::cuda
