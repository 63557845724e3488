#include "engine/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cpu/kernel_choice.h"
#include "engine/float_convert.h"

namespace baton::engine::cpu {
namespace {

constexpr uint16_t kNaN = 0x7fc0;

struct Shape {
  int32_t heads, kv_heads, head_dim, block_size;
};

// One sequence of `length` tokens in shuffled blocks of two layers, of which
// layer 1 is used. All memory that holds no token of the sequence is NaN.
struct Scene {
  Scene(const Shape& shape, int32_t length) : shape(shape), length(length) {
    layout.num_layers = 2;
    layout.block_size = shape.block_size;
    layout.num_kv_heads = shape.kv_heads;
    layout.head_dim = shape.head_dim;
    layout.num_blocks = layout.BlocksFor(length) + 3;
    blocks.resize(layout.num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), bits);
    memory.assign(layout.total_bytes() / 2, kNaN);
    queries.resize(length * query_size());
    for (uint16_t& q : queries) q = FloatToBf16(2.0f * normal(bits));
    for (int32_t position = 0; position < length; ++position) {
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        for (int32_t d = 0; d < shape.head_dim; ++d) {
          Key(position, head)[d] = FloatToBf16(normal(bits));
          Value(position, head)[d] = FloatToBf16(normal(bits));
        }
      }
    }
  }

  int64_t query_size() const { return shape.heads * shape.head_dim; }

  uint16_t* Key(int32_t position, int32_t head) {
    const int64_t bytes =
        layout.PageOffset(1, blocks[position / shape.block_size]) +
        head * layout.head_bytes() +
        position % shape.block_size * shape.head_dim * 2;
    return memory.data() + bytes / 2;
  }
  uint16_t* Value(int32_t position, int32_t head) {
    return Key(position, head) + shape.block_size * shape.head_dim;
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
            Bf16ToFloat(Key(p, kv_head)[d]);
      }
      scores.push_back(score / std::sqrt(shape.head_dim));
    }
    const double max = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    for (double& s : scores) sum += s = std::exp(s - max);
    std::vector<double> result(shape.head_dim);
    for (int32_t p = first; p <= position; ++p) {
      for (int32_t d = 0; d < shape.head_dim; ++d) {
        result[d] +=
            scores[p - first] / sum * Bf16ToFloat(Value(p, kv_head)[d]);
      }
    }
    return result;
  }

  // Runs the positions [first, end) in tiles of at most `tile_rows`.
  std::vector<uint16_t> Run(const Kernels& kernels, ThreadTeam& team,
                            int32_t first, int32_t end, int32_t tile_rows,
                            std::optional<int32_t> window) {
    Attention attention(kernels, layout, shape.heads, team.num_threads());
    tile_rows = std::min(tile_rows, attention.MaxTileRows());
    std::vector<QueryTile> tiles;
    for (int32_t row = 0; row < end - first; row += tile_rows) {
      tiles.push_back({row, row, std::min(tile_rows, end - first - row),
                       first + row, blocks});
    }
    std::vector<uint16_t> output((end - first) * query_size(), kNaN);
    attention.Run(team, tiles, /*layer=*/1,
                  reinterpret_cast<const std::byte*>(memory.data()), window,
                  queries.data() + first * query_size(), query_size(),
                  output.data(), query_size());
    return output;
  }

  const Shape shape;
  const int32_t length;
  std::mt19937 bits{7};
  std::normal_distribution<float> normal;
  KvLayout layout;
  std::vector<BlockId> blocks;
  std::vector<uint16_t> memory;
  std::vector<uint16_t> queries;
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
    {4, 2, 32, 8},    // grouped
    {6, 1, 20, 16},   // one for all, odd size
    {40, 1, 8, 32},   // a group larger than a tile
    {14, 2, 64, 16},  // Qwen2 0.5B
    {8, 2, 128, 128},
};

TEST_P(AttentionTest, IsCloseToDouble) {
  for (const Shape& shape : kShapes) {
    for (const int32_t length : {1, 2, 16, 17, 63, 64, 65, 150}) {
      for (const std::optional<int32_t> window :
           {std::optional<int32_t>(), std::optional<int32_t>(1),
            std::optional<int32_t>(10), std::optional<int32_t>(70)}) {
        Scene scene(shape, length);
        const std::vector<uint16_t> output =
            scene.Run(*GetParam(), team_, 0, length, 1000, window);
        for (int32_t position = 0; position < length; ++position) {
          for (int32_t head = 0; head < shape.heads; ++head) {
            const std::vector<double> expected =
                scene.Expected(position, head, window);
            for (int32_t d = 0; d < shape.head_dim; ++d) {
              // Probabilities and result are rounded to 8 bits; values are
              // about 1, and the rounding of many probabilities averages out.
              ASSERT_NEAR(Bf16ToFloat(output[position * scene.query_size() +
                                             head * shape.head_dim + d]),
                          expected[d], 0.01 + 0x1p-8 * std::abs(expected[d]))
                  << "heads " << shape.heads << " head_dim " << shape.head_dim
                  << " length " << length << " position " << position
                  << " window " << window.value_or(0);
            }
          }
        }
      }
    }
  }
}

TEST_P(AttentionTest, DoesNotDependOnChunksTilesOrThreads) {
  constexpr int32_t kLength = 150;
  for (const Shape& shape : kShapes) {
    for (const std::optional<int32_t> window :
         {std::optional<int32_t>(), std::optional<int32_t>(37)}) {
      Scene scene(shape, kLength);
      const std::vector<uint16_t> whole =
          scene.Run(*GetParam(), team_, 0, kLength, 1000, window);
      ThreadTeam one(1);
      for (const auto& [chunk, tile_rows] :
           {std::pair{1, 1}, {7, 3}, {64, 1000}, {100, 1}}) {
        std::vector<uint16_t> chunked;
        for (int32_t first = 0; first < kLength; first += chunk) {
          const std::vector<uint16_t> part =
              scene.Run(*GetParam(), one, first,
                        std::min(first + chunk, kLength), tile_rows, window);
          chunked.insert(chunked.end(), part.begin(), part.end());
        }
        ASSERT_EQ(chunked, whole) << "chunks of " << chunk;
      }
    }
  }
}

// Other values in the same places: nothing is remembered from call to call, and
// the layout is what says where a token lies.
TEST_P(AttentionTest, DoesNotDependOnTheBlockSize) {
  Scene small({4, 2, 32, 8}, 100), large({4, 2, 32, 64}, 100);
  for (int32_t position = 0; position < 100; ++position) {
    for (int32_t head = 0; head < 2; ++head) {
      std::copy_n(small.Key(position, head), 32, large.Key(position, head));
      std::copy_n(small.Value(position, head), 32, large.Value(position, head));
    }
  }
  large.queries = small.queries;
  EXPECT_EQ(small.Run(*GetParam(), team_, 0, 100, 1000, std::nullopt),
            large.Run(*GetParam(), team_, 0, 100, 1000, std::nullopt));
}

}  // namespace
}  // namespace baton::engine::cpu
