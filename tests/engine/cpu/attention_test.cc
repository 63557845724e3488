#include "engine/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu::attention_test {
namespace {

constexpr uint16_t kNaN = 0x7fc0;

struct Shape {
  int32_t heads, kv_heads, head_dim, block_size;
  // When not 0, values are so many of the first elements of keys.
  int32_t shared_value_dim = 0;
};

// The layout of a scene: two layers, of which layer 1 is used.
KvLayout LayoutOf(const Shape& shape, int32_t length, KvDtype dtype) {
  KvLayout layout;
  layout.num_layers = 2;
  layout.block_size = shape.block_size;
  layout.num_kv_heads = shape.kv_heads;
  layout.head_dim = shape.head_dim;
  layout.shared_value_dim = shape.shared_value_dim;
  layout.dtype = dtype;
  layout.num_blocks = layout.BlocksFor(length) + 3;
  return layout;
}

// One sequence of `length` tokens in shuffled blocks. All memory that holds no
// token of the sequence is NaN.
struct Scene {
  Scene(const Kernels& kernels, const Shape& shape, int32_t length,
        KvDtype dtype = KvDtype::kBf16)
      : kernels(kernels),
        shape(shape),
        length(length),
        layout(LayoutOf(shape, length, dtype)),
        blocks(layout.num_blocks),
        memory(layout.total_bytes(), std::byte{0xff}),
        pages(kernels, layout, memory.data()) {
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), bits);
    queries.resize(length * query_size());
    for (uint16_t& q : queries) q = FloatToBf16(2.0f * normal(bits));
    for (std::vector<float>* rows : {&keys, &values}) {
      rows->resize(int64_t{length} * shape.kv_heads * shape.head_dim);
      for (float& x : *rows) x = Bf16ToFloat(FloatToBf16(normal(bits)));
    }
    for (int32_t position = 0; position < length; ++position) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        pages.WriteKey(1, blocks, position, head, Row(keys, position, head));
        if (layout.shares_values()) continue;
        pages.WriteValue(1, blocks, position, head,
                         Row(values, position, head));
      }
    }
  }

  int64_t query_size() const { return shape.heads * shape.head_dim; }
  int64_t output_size() const { return shape.heads * layout.value_dim(); }
  const float* Row(const std::vector<float>& rows, int32_t position,
                   int32_t head) const {
    return rows.data() +
           (int64_t{position} * shape.kv_heads + head) * shape.head_dim;
  }
  const float* Key(int32_t position, int32_t head) const {
    return Row(keys, position, head);
  }
  const float* Value(int32_t position, int32_t head) const {
    return Row(layout.shares_values() ? keys : values, position, head);
  }

  std::vector<double> Expected(int32_t position, int32_t head,
                               std::optional<int32_t> window) {
    const int32_t kv_head = head / (shape.heads / shape.kv_heads);
    const int32_t first = window ? std::max(0, position - *window + 1) : 0;
    std::vector<double> scores;
    for (int32_t p = first; p <= position; ++p) {
      double score = 0.0;
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        score +=
            double{Bf16ToFloat(
                queries[position * query_size() + head * shape.head_dim + d])} *
            Key(p, kv_head)[d];
      }
      scores.push_back(score / std::sqrt(shape.head_dim));
    }
    if (!sinks.empty()) scores.push_back(sinks[head]);
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& s : scores) sum += s = std::exp(s - max);
    std::vector<double> result(layout.value_dim());
    for (int32_t p = first; p <= position; ++p) {
      for (int32_t d = 0; d < layout.value_dim(); ++d) {
        result[d] += scores[p - first] / sum * Value(p, kv_head)[d];
      }
    }
    return result;
  }

  // Runs the positions [first, end) in tiles of at most `tile_rows`.
  std::vector<uint16_t> Run(ThreadTeam& team, int32_t first, int32_t end,
                            int32_t tile_rows,
                            std::optional<int32_t> window) const {
    Attention attention(kernels, pages, shape.heads,
                        1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
                        team.num_threads());
    tile_rows = std::min(tile_rows, attention.MaxTileRows());
    std::vector<QueryTile> tiles;
    for (int32_t row = 0; row < end - first; row += tile_rows) {
      tiles.push_back({row, row, std::min(tile_rows, end - first - row),
                       first + row, blocks});
    }
    std::vector<uint16_t> output((end - first) * output_size(), kNaN);
    attention.Run(team, tiles, /*layer=*/1, window, sinks,
                  queries.data() + first * query_size(), query_size(),
                  output.data(), output_size(), layout.value_dim());
    return output;
  }

  // Compares the results of all positions with those in double precision.
  void ExpectClose(const std::vector<uint16_t>& output,
                   std::optional<int32_t> window, double tolerance) {
    for (int32_t position = 0; position < length; ++position) {
      for (int32_t head = 0; head < shape.heads; ++head) {
        const std::vector<double> expected = Expected(position, head, window);
        for (int32_t d = 0; d < layout.value_dim(); ++d) {
          ASSERT_NEAR(Bf16ToFloat(output[position * output_size() +
                                         head * layout.value_dim() + d]),
                      expected[d], tolerance + 0x1p-8 * std::abs(expected[d]))
              << "heads " << shape.heads << " head_dim " << shape.head_dim
              << " length " << length << " position " << position << " window "
              << window.value_or(0);
        }
      }
    }
  }

  const Kernels& kernels;
  const Shape shape;
  const int32_t length;
  std::mt19937 bits{7};
  std::normal_distribution<float> normal;
  const KvLayout layout;
  std::vector<BlockId> blocks;
  std::vector<std::byte> memory;
  const KvPages pages;
  std::vector<float> keys;
  std::vector<float> values;
  std::vector<uint16_t> queries;
  std::vector<float> sinks;  // one per head, or none
};

class AttentionTest : public testing::TestWithParam<const Kernels*> {
 protected:
  ThreadTeam team_{2};
};

INSTANTIATE_TEST_SUITE_P(
    Isa, AttentionTest,
    testing::ValuesIn(AvailableKernels().begin(), AvailableKernels().end()),
    [](const testing::TestParamInfo<const Kernels*>& info) {
      return std::string(info.param->name);
    });

constexpr Shape kShapes[] = {
    {4, 4, 16, 16},   // a head of its own for each query head
    {4, 2, 32, 16},   // grouped
    {6, 1, 20, 16},   // one for all, odd size
    {40, 1, 8, 32},   // a group larger than a tile
    {14, 2, 64, 16},  // Qwen2 0.5B
    {8, 2, 128, 128},   {4, 1, 256, 16},        // Gemma 3 1B
    {6, 1, 44, 16, 32}, {16, 1, 576, 64, 512},  // DeepSeek-V2-Lite
};

constexpr std::optional<int32_t> kNoWindow;

// Sums in double of long keys take their time: a few are enough.
bool TakesLong(const Shape& shape, int32_t length) {
  return shape.head_dim > 256 && length != 17 && length != 65;
}

TEST_P(AttentionTest, IsCloseToDouble) {
  for (const Shape& shape : kShapes) {
    for (const int32_t length : {1, 2, 16, 17, 63, 64, 65, 150}) {
      if (TakesLong(shape, length)) continue;
      for (const std::optional<int32_t> window :
           {kNoWindow, std::optional<int32_t>(1), std::optional<int32_t>(10),
            std::optional<int32_t>(70)}) {
        Scene scene(*GetParam(), shape, length);
        // Probabilities and result are rounded to 8 bits; values are about 1,
        // and the rounding of many probabilities averages out.
        scene.ExpectClose(scene.Run(team_, 0, length, 1000, window), window,
                          0.01);
      }
    }
  }
}

TEST_P(AttentionTest, SinksTakeTheirShare) {
  for (const int32_t length : {1, 17, 150}) {
    for (const std::optional<int32_t> window :
         {kNoWindow, std::optional<int32_t>(10)}) {
      Scene scene(*GetParam(), {14, 2, 64, 16}, length);
      // From nothing to nearly all of it.
      for (int32_t head = 0; head < scene.shape.heads; ++head) {
        scene.sinks.push_back(static_cast<float>(head) - 5.0f);
      }
      scene.ExpectClose(scene.Run(team_, 0, length, 1000, window), window,
                        0.01);
    }
  }
}

TEST_P(AttentionTest, SinksFarAboveLeaveNothing) {
  Scene scene(*GetParam(), {4, 2, 32, 16}, 20);
  scene.sinks = {1e4f, -1e4f, 1e4f, -1e4f};
  const std::vector<uint16_t> output =
      scene.Run(team_, 0, scene.length, 1000, kNoWindow);
  scene.ExpectClose(output, kNoWindow, 0.01);
  EXPECT_EQ(output[0], 0);
}

TEST_P(AttentionTest, IsCloseToDoubleOverSeveralSpans) {
  for (const std::optional<int32_t> window :
       {kNoWindow, std::optional<int32_t>(530)}) {
    Scene scene(*GetParam(), {2, 1, 16, 16}, 1100);
    scene.ExpectClose(scene.Run(team_, 0, 1100, 1000, window), window, 0.01);
  }
}

// Quantizing a key or a value to 255 steps moves each element by at most its
// largest one / 254: about 0.015 here, which hardly averages out in a score.
TEST_P(AttentionTest, Int8KvIsCloseToDouble) {
  for (const Shape& shape : kShapes) {
    for (const int32_t length : {1, 17, 65, 150}) {
      if (TakesLong(shape, length)) continue;
      Scene scene(*GetParam(), shape, length, KvDtype::kInt8);
      scene.ExpectClose(scene.Run(team_, 0, length, 1000, kNoWindow), kNoWindow,
                        0.12);
    }
  }
}

TEST_P(AttentionTest, DoesNotDependOnChunksTilesOrThreads) {
  constexpr int32_t kLength = 150;
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kInt8}) {
    for (const Shape& shape : kShapes) {
      for (const std::optional<int32_t> window :
           {kNoWindow, std::optional<int32_t>(37)}) {
        Scene scene(*GetParam(), shape, kLength, dtype);
        const std::vector<uint16_t> whole =
            scene.Run(team_, 0, kLength, 1000, window);
        ThreadTeam one(1);
        for (const auto& [chunk, tile_rows] :
             {std::pair{1, 1}, {7, 3}, {64, 1000}, {100, 1}}) {
          std::vector<uint16_t> chunked;
          for (int32_t first = 0; first < kLength; first += chunk) {
            const std::vector<uint16_t> part =
                scene.Run(one, first, std::min(first + chunk, kLength),
                          tile_rows, window);
            chunked.insert(chunked.end(), part.begin(), part.end());
          }
          ASSERT_EQ(chunked, whole) << "chunks of " << chunk;
        }
      }
    }
  }
}

// A single query of a long sequence is cut into spans that several threads run.
TEST_P(AttentionTest, SpansRunApartGiveTheSame) {
  constexpr int32_t kLength = 1600;
  for (const auto& [shape, window] :
       {std::pair{Shape{4, 1, 32, 16}, kNoWindow},
        {Shape{4, 1, 32, 16}, std::optional<int32_t>(900)},
        {Shape{4, 1, 40, 16, 32}, kNoWindow}}) {
    Scene scene(*GetParam(), shape, kLength);
    const std::vector<uint16_t> whole =
        scene.Run(team_, 0, kLength, 1000, window);
    ThreadTeam three(3), one(1);
    for (const int32_t position : {0, 511, 512, 513, 1023, 1024, 1599}) {
      const std::vector<uint16_t> expected(
          whole.begin() + position * scene.output_size(),
          whole.begin() + (position + 1) * scene.output_size());
      for (ThreadTeam* team : {&one, &team_, &three}) {
        ASSERT_EQ(scene.Run(*team, position, position + 1, 1, window), expected)
            << position << " on " << team->num_threads() << " threads";
      }
    }
  }
}

// So are the heads that share one key, where there are few spans; into parts
// that are not alike, of one token or several.
TEST_P(AttentionTest, HeadsOfOneKeyRunApartGiveTheSame) {
  constexpr int32_t kLength = 530;
  for (const int32_t heads : {20, 35}) {
    Scene scene(*GetParam(), {heads, 1, 40, 16, 32}, kLength);
    ThreadTeam one(1), three(3), nine(9);
    for (const auto& [first, rows] :
         {std::pair{0, 1}, {63, 3}, {510, 3}, {529, 1}}) {
      const std::vector<uint16_t> expected =
          scene.Run(one, first, first + rows, 1000, kNoWindow);
      for (ThreadTeam* team : {&team_, &three, &nine}) {
        for (const int32_t tile_rows : {1, 3}) {
          ASSERT_EQ(scene.Run(*team, first, first + rows, tile_rows, kNoWindow),
                    expected)
              << heads << " heads, " << rows << " from " << first << " on "
              << team->num_threads() << " threads";
        }
      }
    }
  }
}

// Other values in the same places: nothing is remembered from call to call, and
// the layout is what says where a token lies.
TEST_P(AttentionTest, DoesNotDependOnTheBlockSize) {
  for (const KvDtype dtype : {KvDtype::kBf16, KvDtype::kInt8}) {
    Scene small(*GetParam(), {4, 2, 32, 16}, 100, dtype);
    Scene large(*GetParam(), {4, 2, 32, 64}, 100, dtype);
    for (int32_t position = 0; position < 100; ++position) {
      for (int32_t head = 0; head < 2; ++head) {
        large.pages.WriteKey(1, large.blocks, position, head,
                             small.Key(position, head));
        large.pages.WriteValue(1, large.blocks, position, head,
                               small.Value(position, head));
      }
    }
    large.queries = small.queries;
    EXPECT_EQ(small.Run(team_, 0, 100, 1000, kNoWindow),
              large.Run(team_, 0, 100, 1000, kNoWindow));
  }
}

// Where results of heads lie is the caller's choice.
TEST_P(AttentionTest, HeadsMayLieApart) {
  constexpr int32_t kLength = 20;
  const Shape shape = {6, 1, 44, 16, 32};
  const Scene scene(*GetParam(), shape, kLength);
  const std::vector<uint16_t> expected =
      scene.Run(team_, 0, kLength, 1000, kNoWindow);
  Attention attention(scene.kernels, scene.pages, shape.heads,
                      1.0f / std::sqrt(44.0f), team_.num_threads());
  std::vector<QueryTile> tiles;
  for (int32_t row = 0; row < kLength; ++row) {
    tiles.push_back({row, row, 1, row, scene.blocks});
  }
  constexpr int64_t kStride = 40;
  std::vector<uint16_t> output(shape.heads * kLength * kStride, kNaN);
  attention.Run(team_, tiles, /*layer=*/1, kNoWindow, {}, scene.queries.data(),
                scene.query_size(), output.data(), kStride, kLength * kStride);
  for (int32_t row = 0; row < kLength; ++row) {
    for (int32_t head = 0; head < shape.heads; ++head) {
      for (int32_t d = 0; d < kStride; ++d) {
        EXPECT_EQ(output[(head * kLength + row) * kStride + d],
                  d < 32 ? expected[row * 6 * 32 + head * 32 + d] : kNaN);
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cpu::attention_test
