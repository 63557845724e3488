// Attention on a device, over KV in bfloat16, int8 and fp8: against sums in
// double, and its ways (spans apart, tiles whole, tiles by groups of warps)
// against each other to the bit.
#include "engine/cuda/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cuda/row_kernels.h"
#include "engine/float_convert.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/fp8_pages.h"

namespace baton::engine::cuda {
namespace {

enum class Way { kTiles, kSpans, kGroups };

struct Shape {
  int32_t heads, kv_heads, head_dim, block_size;
};

class AttentionTest : public DeviceTest,
                      public testing::WithParamInterface<KvDtype> {
 protected:
  // A sequence of `length` tokens in shuffled blocks; memory that holds none of
  // its tokens is NaN, as are the scales there, but for what fills heads up.
  void Make(const Shape& shape, int32_t length) {
    shape_ = shape;
    length_ = length;
    layout_ = {};
    layout_.num_layers = 1;
    layout_.block_size = shape.block_size;
    layout_.num_kv_heads = shape.kv_heads;
    layout_.head_dim = shape.head_dim;
    layout_.dtype = GetParam();
    layout_.num_blocks = layout_.BlocksFor(length) + 3;
    std::vector<BlockId> blocks(layout_.num_blocks);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::mt19937 bits(5);
    std::shuffle(blocks.begin(), blocks.end(), bits);
    std::vector<std::byte> memory(layout_.total_bytes(), std::byte{0xff});
    const int32_t stored = layout_.stored_head_dim();
    keys_ = Floats(
        RandomBf16(int64_t{length} * shape.kv_heads * shape.head_dim, 6));
    values_ = Floats(
        RandomBf16(int64_t{length} * shape.kv_heads * shape.head_dim, 7));
    switch (GetParam()) {
      case KvDtype::kBf16:
        WriteAsTheCpu(blocks, &memory);
        ZeroPadding(blocks, &memory);
        break;
      case KvDtype::kInt8:
        WriteAsTheCpu(blocks, &memory);
        RoundToInt8(&keys_);
        RoundToInt8(&values_);
        break;
      case KvDtype::kFp8:
        WriteRounded(KvPart::kKeys, blocks, &keys_, &memory);
        WriteRounded(KvPart::kValues, blocks, &values_, &memory);
        break;
    }
    queries_ = Floats(
        RandomBf16(int64_t{length} * shape.heads * shape.head_dim, 8, 2.0f));
    std::vector<uint16_t> queries(int64_t{length} * shape.heads * stored);
    for (int64_t row = 0; row < int64_t{length} * shape.heads; ++row) {
      for (int32_t i = 0; i < shape.head_dim; ++i) {
        queries[row * stored + i] =
            FloatToBf16(queries_[row * shape.head_dim + i]);
      }
    }
    args_ = {};
    sinks_.clear();
    args_.queries = Put(queries);
    args_.pages = Put(memory);
    args_.page_bytes = layout_.page_bytes();
    args_.head_bytes = layout_.head_bytes();
    args_.values_offset = layout_.ValuesOffset();
    args_.scales_offset = layout_.KeyScalesOffset();
    args_.block_size = layout_.block_size;
    args_.kv_dtype = layout_.dtype;
    args_.block_tables = Put(blocks);
    args_.num_heads = shape.heads;
    args_.num_kv_heads = shape.kv_heads;
    args_.head_dim = shape.head_dim;
    args_.stored_head_dim = stored;
    args_.score_factor = ScoreFactor(1.0 / std::sqrt(shape.head_dim));
    args_.out_stride = shape.heads * shape.head_dim + 5;
  }

  // The CPU backend writes the pages: both read the same layout.
  void WriteAsTheCpu(const std::vector<BlockId>& blocks,
                     std::vector<std::byte>* memory) const {
    const cpu::KvPages pages(*cpu::FindKernels("portable").value(), layout_,
                             memory->data());
    for (int32_t position = 0; position < length_; ++position) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        pages.WriteKey(0, blocks, position, head, Row(keys_, position, head));
        pages.WriteValue(0, blocks, position, head,
                         Row(values_, position, head));
      }
    }
  }

  // Writes rows in fp8; they become what that stands for.
  void WriteRounded(KvPart part, const std::vector<BlockId>& blocks,
                    std::vector<float>* rows,
                    std::vector<std::byte>* memory) const {
    float* row = rows->data();
    for (int32_t position = 0; position < length_; ++position) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        const Fp8Row rounded =
            RoundToFp8(absl::MakeConstSpan(row, shape_.head_dim));
        WriteFp8(layout_, memory->data(), /*layer=*/0, blocks, position, head,
                 part, rounded);
        const std::vector<float> values = rounded.Values();
        row = std::copy(values.begin(), values.end(), row);
      }
    }
  }

  // What int8 stands for; sums in double are of that.
  void RoundToInt8(std::vector<float>* rows) const {
    const cpu::Kernels& kernels = *cpu::FindKernels("portable").value();
    std::vector<int8_t> q(shape_.head_dim);
    for (size_t at = 0; at < rows->size(); at += q.size()) {
      float* const row = rows->data() + at;
      int32_t sum;
      const float scale =
          kernels.quantize(row, shape_.head_dim, q.data(), &sum);
      for (size_t i = 0; i < q.size(); ++i) row[i] = scale * q[i];
    }
  }

  // The CUDA backend writes zeros where keys and values are filled up. Of
  // bytes, nothing there is read as NaN.
  void ZeroPadding(const std::vector<BlockId>& blocks,
                   std::vector<std::byte>* memory) const {
    for (int32_t position = 0; position < length_; ++position) {
      for (int32_t head = 0; head < shape_.kv_heads; ++head) {
        for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
          auto* const to = reinterpret_cast<uint16_t*>(
              PartAt(layout_, memory->data(), /*layer=*/0, blocks, position,
                     head, part));
          for (int32_t i = shape_.head_dim; i < layout_.stored_head_dim();
               ++i) {
            to[ElementPlace(layout_, position, i, part)] = 0;
          }
        }
      }
    }
  }

  const float* Row(const std::vector<float>& rows, int32_t position,
                   int32_t head) const {
    return rows.data() +
           (int64_t{position} * shape_.kv_heads + head) * shape_.head_dim;
  }

  std::vector<double> Expected(int32_t position, int32_t head,
                               int32_t window) const {
    const int32_t kv_head = head / (shape_.heads / shape_.kv_heads);
    const float* const query =
        queries_.data() +
        (int64_t{position} * shape_.heads + head) * shape_.head_dim;
    std::vector<double> weights;
    const int32_t first = FirstVisible(position, window);
    double max = -1e30;
    for (int32_t at = first; at <= position; ++at) {
      double score = 0;
      for (int32_t i = 0; i < shape_.head_dim; ++i) {
        score += double{query[i]} * Row(keys_, at, kv_head)[i];
      }
      weights.push_back(score / std::sqrt(shape_.head_dim));
      max = std::max(max, weights.back());
    }
    double sum = sinks_.empty() ? 0 : std::exp(double{sinks_[head]} - max);
    for (double& w : weights) sum += w = std::exp(w - max);
    std::vector<double> out(shape_.head_dim);
    for (int32_t at = first; at <= position; ++at) {
      for (int32_t i = 0; i < shape_.head_dim; ++i) {
        out[i] += weights[at - first] / sum * Row(values_, at, kv_head)[i];
      }
    }
    return out;
  }

  // Gives each head a sink, from nothing to nearly all that there is.
  void MakeSinks() {
    for (int32_t head = 0; head < shape_.heads; ++head) {
      sinks_.push_back(3.0f * static_cast<float>(head) - 4.0f);
    }
    std::vector<float> scaled = sinks_;
    for (float& sink : scaled) sink *= static_cast<float>(kLog2E);
    args_.sinks = Put(scaled);
  }

  // Runs the tokens [first, first + count) and gives their rows of the output.
  std::vector<uint16_t> Run(int32_t first, int32_t count, int32_t window,
                            Way way, int32_t span_rows = 1) {
    args_.tile_queries = way == Way::kGroups ? kGroupTileQueries : kTileQueries;
    const int32_t tile_rows =
        way == Way::kSpans
            ? span_rows
            : MaxTileRows(shape_.heads / shape_.kv_heads, args_.tile_queries);
    std::vector<QueryTile> tiles;
    int32_t max_spans = 0;
    for (int32_t i = 0; i < count; i += tile_rows) {
      const int32_t rows = std::min(tile_rows, count - i);
      tiles.push_back({first + i, i, rows, first + i, /*block_table=*/0});
      max_spans = std::max(max_spans,
                           SpansOfAll(first + i, first + i + rows - 1, window));
    }
    // A tile that is not there, and a span more than any tile has.
    tiles.push_back({});
    args_.tiles = Put(tiles);
    args_.num_tiles = static_cast<int32_t>(tiles.size());
    args_.window = window;
    args_.max_spans = 0;
    args_.span_rows = 1;
    if (way == Way::kSpans) {
      args_.max_spans = max_spans + 1;
      args_.span_rows = span_rows;
      const int64_t pieces = int64_t{std::max(args_.num_tiles, count)} *
                             shape_.heads * args_.max_spans;
      args_.span_sums = Take<float>(pieces * args_.stored_head_dim);
      args_.span_states = Take<float>(pieces * 2);
      args_.span_counts = Put(
          std::vector<uint32_t>(int64_t{args_.num_tiles} * shape_.kv_heads, 0));
    }
    args_.out = Take<uint16_t>(count * args_.out_stride);
    RunAttention(args_, stream().handle());
    return Get(args_.out, count * args_.out_stride);
  }

  void ExpectRight(const std::vector<uint16_t>& out, int32_t first,
                   int32_t count, int32_t window) {
    for (int32_t i = 0; i < count; ++i) {
      for (int64_t c = shape_.heads * shape_.head_dim; c < args_.out_stride;
           ++c) {
        ASSERT_EQ(out[i * args_.out_stride + c], 0xffff) << "wrote outside";
      }
      for (int32_t head = 0; head < shape_.heads; ++head) {
        const std::vector<double> expected = Expected(first + i, head, window);
        for (int32_t e = 0; e < shape_.head_dim; ++e) {
          const float value = Bf16ToFloat(
              out[i * args_.out_stride + head * shape_.head_dim + e]);
          // Weights and results are bfloat16; values are about 1. Where
          // there are scales, weights are rounded with the values'.
          ASSERT_NEAR(value, expected[e], 0.02)
              << "position " << first + i << " head " << head << " element "
              << e << " window " << window;
        }
      }
    }
  }

  Shape shape_;
  int32_t length_ = 0;
  KvLayout layout_;
  std::vector<float> keys_, values_, queries_;
  std::vector<float> sinks_;  // of heads, or none
  AttentionArgs args_;
};

INSTANTIATE_TEST_SUITE_P(KvDtypes, AttentionTest, testing::ValuesIn(kKvDtypes),
                         [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

std::vector<Shape> Shapes() {
  return {{4, 2, 16, 16},  {3, 1, 10, 32},   {8, 1, 64, 16},
          {2, 2, 128, 64}, {16, 1, 32, 128}, {6, 2, 48, 16},
          {2, 1, 80, 16},  {4, 4, 96, 16},   {4, 1, 256, 32}};
}

TEST_P(AttentionTest, IsThatOfSumsInDouble) {
  for (const Shape& shape : Shapes()) {
    const int32_t length = large() ? 700 : 90;
    Make(shape, length);
    for (const int32_t window : {0, 20}) {
      ExpectRight(Run(0, length, window, Way::kTiles), 0, length, window);
    }
  }
}

TEST_P(AttentionTest, SpansApartGiveTheSameBitsAsTiles) {
  std::vector<Shape> shapes = Shapes();
  // More heads that share a key than are multiplied at a time.
  for (const int32_t head_dim : {16, 48, 64, 80, 96}) {
    shapes.push_back({11, 1, head_dim, 32});
  }
  for (const Shape& shape : shapes) {
    const int32_t length = 534;  // several spans
    Make(shape, length);
    // Guesses at a sequence's next tokens share a block; with the last window
    // some see a span more than others.
    const int32_t most = MaxSpanRows(shape.heads / shape.kv_heads);
    // On the CPU, the larger ones for a few tokens.
    const bool all = large() || shape.heads * shape.head_dim <= 64;
    for (const int32_t window : {0, 100, 271}) {
      if (!all && window == 100) continue;
      for (const int32_t first : {0, 63, 255, 256, 525}) {
        if (!all && first != 63 && first != 525) continue;
        const int32_t count = std::min(all ? 9 : 2, length - first);
        const std::vector<uint16_t> tiles =
            Run(first, count, window, Way::kTiles);
        ExpectRight(tiles, first, count, window);
        for (const int32_t rows : {1, most / 2, most}) {
          if (rows == 0) continue;
          EXPECT_EQ(tiles, Run(first, count, window, Way::kSpans, rows))
              << first << " " << rows;
        }
      }
    }
  }
}

TEST_P(AttentionTest, SinksTakeTheirShareInAllWays) {
  for (const Shape& shape : {Shape{6, 2, 64, 16}, Shape{4, 2, 20, 32}}) {
    const int32_t length = 300;
    Make(shape, length);
    MakeSinks();
    const int32_t first = large() ? 0 : length - 12;
    for (const int32_t window : {0, 20}) {
      const std::vector<uint16_t> tiles =
          Run(first, length - first, window, Way::kTiles);
      ExpectRight(tiles, first, length - first, window);
      for (const int32_t rows : {1, 4}) {
        EXPECT_EQ(Run(first, length - first, window, Way::kSpans, rows), tiles);
      }
      if (!kernels().group_attention ||
          !IsGroupAttentionHeadDim(args_.stored_head_dim)) {
        continue;
      }
      EXPECT_EQ(Run(first, length - first, window, Way::kGroups), tiles);
    }
  }
}

TEST_P(AttentionTest, SinksFarAboveLeaveNothing) {
  Make({2, 1, 16, 16}, 30);
  args_.sinks = Put(std::vector<float>{1e5f, -1e5f});
  const std::vector<uint16_t> tiles = Run(29, 1, 0, Way::kTiles);
  EXPECT_EQ(Run(29, 1, 0, Way::kSpans), tiles);
  for (int32_t e = 0; e < 16; ++e) EXPECT_EQ(tiles[e], 0) << e;
  args_.sinks = nullptr;
  const std::vector<uint16_t> without = Run(29, 1, 0, Way::kTiles);
  EXPECT_TRUE(
      std::equal(tiles.begin() + 16, tiles.begin() + 32, without.begin() + 16));
}

// More than a thread asks for at a time, more than there is room for the states
// of, and heads of which the last are fewer than are merged together.
TEST_P(AttentionTest, ManySpansAreMergedInTheirOrder) {
  const int32_t length =
      large() || GetParam() == KvDtype::kBf16 ? 33'100 : 2400;
  Make({6, 1, 16, 64}, length);
  for (int repeat = 0; repeat < (large() ? 20 : 1); ++repeat) {
    EXPECT_EQ(Run(length - 1, 1, 0, Way::kSpans),
              Run(length - 1, 1, 0, Way::kTiles));
    EXPECT_THAT(Get(args_.span_counts, args_.num_tiles), testing::Each(0u));
  }
}

TEST_P(AttentionTest, CutsOfAPromptGiveTheSameBits) {
  Make({4, 2, 32, 16}, 300);
  for (const int32_t window : {0, 70}) {
    const std::vector<uint16_t> all = Run(0, 300, window, Way::kTiles);
    for (const auto& [first, count] : std::vector<std::pair<int32_t, int32_t>>{
             {0, 1}, {1, 31}, {32, 64}, {250, 50}, {299, 1}, {17, 200}}) {
      const std::vector<uint16_t> part = Run(first, count, window, Way::kTiles);
      EXPECT_TRUE(std::equal(part.begin(), part.end(),
                             all.begin() + first * args_.out_stride))
          << first << " " << count;
    }
  }
}

// Queries, keys and values of single tokens are those that a kernel of their
// own makes, to the bit, whichever tile and span the token is in.
TEST_P(AttentionTest, SpansMakeTheirTokensHeads) {
  constexpr int32_t kLength = 300;
  for (const Shape& shape :
       {Shape{4, 2, 64, 16}, Shape{8, 2, 128, 32}, Shape{16, 1, 128, 16},
        Shape{6, 2, 30, 64}, Shape{3, 3, 16, 16}, Shape{4, 1, 256, 32}}) {
    Make(shape, kLength);
    const std::vector<std::byte> memory =
        Get(args_.pages, layout_.total_bytes());
    FinishHeadsArgs heads;
    const int64_t row =
        int64_t{shape.heads + 2 * shape.kv_heads} * shape.head_dim;
    heads.qkv = Put(Floats(RandomBf16(kLength * row, 31, 1.3f)));
    heads.num_heads = shape.heads;
    heads.num_kv_heads = shape.kv_heads;
    heads.head_dim = shape.head_dim;
    heads.turning_pairs = shape.head_dim / 2;
    heads.stored_head_dim = args_.stored_head_dim;
    heads.eps = 1e-5f;
    heads.rope = Put(Floats(RandomBf16(kLength * shape.head_dim, 32)));
    heads.page_bytes = args_.page_bytes;
    heads.head_bytes = args_.head_bytes;
    heads.values_offset = args_.values_offset;
    heads.scales_offset = args_.scales_offset;
    heads.block_size = args_.block_size;
    heads.kv_dtype = args_.kv_dtype;
    heads.block_tables = args_.block_tables;
    const int64_t queries =
        int64_t{kLength} * shape.heads * args_.stored_head_dim;
    for (const int32_t position : {0, 63, 64, 200, 255, 256, 299}) {
      if (position % 64 == 0) {
        heads.q_norm = Put(Floats(RandomBf16(shape.head_dim, 33)));
        heads.k_norm = Put(Floats(RandomBf16(shape.head_dim, 34)));
      } else {
        heads.q_norm = heads.k_norm = nullptr;
      }
      std::vector<RowPlace> places(kLength);
      places[position] = {position, 0};
      heads.places = Put(places);
      heads.rows = kLength;
      const int32_t window = position == 299 ? 90 : 0;
      // Apart.
      heads.queries = Take<uint16_t>(queries);
      heads.pages = Put(memory);
      RunFinishHeads(heads, stream().handle());
      args_.heads = {};
      args_.queries = heads.queries;
      args_.pages = heads.pages;
      const std::vector<uint16_t> apart = Run(position, 1, window, Way::kSpans);
      const auto written = Get(args_.pages, layout_.total_bytes());
      EXPECT_NE(written, memory);
      // And together.
      heads.queries = nullptr;
      heads.pages = Put(memory);
      args_.heads = heads;
      args_.queries = Take<uint16_t>(queries);
      args_.pages = heads.pages;
      EXPECT_EQ(Run(position, 1, window, Way::kSpans), apart)
          << shape.heads << " heads of " << shape.head_dim << ", " << position;
      EXPECT_EQ(Get(args_.pages, layout_.total_bytes()), written)
          << shape.heads << " heads of " << shape.head_dim << ", " << position;
    }
  }
}

// More than a span; tiles that are full and that are not; heads whose queries
// divide neither 64 nor 128; windows, with which some positions are seen by one
// group of warps only.
TEST_P(AttentionTest, GroupsOfWarpsGiveTheSameBits) {
  if (!kernels().group_attention) GTEST_SKIP() << "not on this device";
  const std::vector<Shape> shapes = {{4, 2, 64, 16},  {2, 1, 128, 64},
                                     {7, 1, 128, 32}, {6, 2, 120, 16},
                                     {48, 1, 64, 16}, {1, 1, 128, 128}};
  for (const Shape& shape : shapes) {
    const int32_t group = shape.heads / shape.kv_heads;
    const int32_t length = large() ? 330 : group == 2 ? 270 : 70;
    Make(shape, length);
    for (const int32_t window : {0, 1, 90}) {
      std::vector<std::pair<int32_t, int32_t>> parts = {{length - 40, 40}};
      if (large() || window != 1) parts.emplace_back(0, length);
      if (large() || window == 90) parts.emplace_back(length / 2 + 1, 1);
      for (const auto& [first, count] : parts) {
        EXPECT_EQ(Run(first, count, window, Way::kGroups),
                  Run(first, count, window, Way::kTiles))
            << shape.heads << " heads of " << shape.head_dim << ", window "
            << window << ", " << first << " + " << count;
      }
    }
  }
}

// As many stages as turn each barrier often.
TEST_P(AttentionTest, GroupsOfWarpsRunLongPrompts) {
  if (!kernels().group_attention) GTEST_SKIP() << "not on this device";
  for (const int32_t head_dim : {64, 128}) {
    const int32_t length = large() ? 3000 : 600;
    Make(large() ? Shape{8, 2, head_dim, 16} : Shape{2, 1, head_dim, 16},
         length);
    for (const int32_t window : {0, length / 3}) {
      const std::vector<uint16_t> tiles = Run(0, length, window, Way::kTiles);
      for (int repeat = 0; repeat < (large() ? 5 : 1); ++repeat) {
        EXPECT_EQ(Run(0, length, window, Way::kGroups), tiles) << window;
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
