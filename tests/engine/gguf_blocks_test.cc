#include "engine/gguf_blocks.h"

#include <bit>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "common/json.h"
#include "engine/weight_matrix.h"

namespace baton::engine {
namespace {

struct Format {
  WeightEncoding encoding;
  int64_t block_elements;
  int64_t block_bytes;
};

constexpr Format kFormats[] = {
    {WeightEncoding::kGgufQ4_0, 32, 18},  {WeightEncoding::kGgufQ4_1, 32, 20},
    {WeightEncoding::kGgufQ5_0, 32, 22},  {WeightEncoding::kGgufQ5_1, 32, 24},
    {WeightEncoding::kGgufQ8_0, 32, 34},  {WeightEncoding::kGgufQ4K, 256, 144},
    {WeightEncoding::kGgufQ5K, 256, 176}, {WeightEncoding::kGgufQ6K, 256, 210}};

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

// A golden case: 256 weights as another program quantized them.
struct Golden {
  std::string blocks;
  std::vector<float> weights;
};

Golden ReadGolden(const char* format) {
  std::ifstream in(std::string(BATON_SOURCE_DIR) +
                   "/tests/data/gguf/blocks.json");
  const auto document = nlohmann::json::parse(in);
  const nlohmann::json& entry = document.at(format);
  Golden golden;
  golden.blocks = absl::HexStringToBytes(entry.at("blocks").get<std::string>());
  const std::string weights =
      absl::HexStringToBytes(entry.at("weights").get<std::string>());
  golden.weights.resize(weights.size() / sizeof(float));
  std::memcpy(golden.weights.data(), weights.data(), weights.size());
  return golden;
}

TEST(GgufBlocksTest, WeightsAreExactlyWhatTheFormatsDefine) {
  for (const Format& format : kFormats) {
    const char* const name = WeightEncodingName(format.encoding);
    const Golden golden = ReadGolden(name);
    ASSERT_EQ(golden.weights.size(), 256u);
    std::vector<float> weights(256);
    ReadGgufBlocks(format.encoding, Bytes(golden.blocks),
                   absl::MakeSpan(weights));
    for (size_t i = 0; i < weights.size(); ++i) {
      EXPECT_EQ(weights[i], golden.weights[i]) << name << " " << i;
    }
  }
}

TEST(GgufBlocksTest, RowsOfAMatrixAreRead) {
  for (const Format& format : kFormats) {
    const Golden golden = ReadGolden(WeightEncodingName(format.encoding));
    const int64_t rows = 256 / format.block_elements;
    WeightMatrix matrix;
    matrix.name = "w";
    matrix.rows = rows;
    matrix.columns = format.block_elements;
    matrix.encoding = format.encoding;
    matrix.values.bytes = Bytes(golden.blocks);
    std::vector<float> row(matrix.columns);
    for (int64_t r = 0; r < rows; ++r) {
      ReadRow(matrix, r, absl::MakeSpan(row));
      for (int64_t i = 0; i < matrix.columns; ++i) {
        EXPECT_EQ(row[i], golden.weights[r * matrix.columns + i]);
      }
    }
    std::vector<float> all(256);
    ReadRows(matrix, 0, rows, absl::MakeSpan(all));
    EXPECT_EQ(all, golden.weights);
  }
}

// By hand: the numbers of e2m1 are a table, their order is i and i + 16 in a
// byte, and the scale is a power of two.
TEST(GgufBlocksTest, Mxfp4) {
  std::string blocks;
  blocks += static_cast<char>(127 + 3);
  for (int i = 0; i < 16; ++i) {
    blocks += static_cast<char>(i | (15 - i) << 4);
  }
  blocks += static_cast<char>(127 - 2);
  blocks += std::string(16, static_cast<char>(0xa3));
  std::vector<float> weights(64);
  ReadGgufBlocks(WeightEncoding::kGgufMxfp4, Bytes(blocks),
                 absl::MakeSpan(weights));
  const std::vector<float> e2m1 = {0,    0.5,  1,  1.5,  2,  3,  4,  6,
                                   -0.f, -0.5, -1, -1.5, -2, -3, -4, -6};
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(weights[i], 8 * e2m1[i]) << i;
    EXPECT_EQ(weights[16 + i], 8 * e2m1[15 - i]) << i;
    EXPECT_EQ(weights[32 + i], 0.25f * 1.5f);
    EXPECT_EQ(weights[48 + i], 0.25f * -1.0f);
  }
}

TEST(GgufBlocksTest, AnyBytesAreWeights) {
  // Every bit pattern of a block is defined; none reads beyond it.
  for (const Format& format : kFormats) {
    for (const char fill : {'\0', '\x7f', '\x80', '\xff'}) {
      const std::string blocks(format.block_bytes * 3, fill);
      std::vector<float> weights(format.block_elements * 3);
      ReadGgufBlocks(format.encoding, Bytes(blocks), absl::MakeSpan(weights));
      if (fill == '\0') {
        for (const float w : weights) EXPECT_EQ(w, 0.0f);
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine
