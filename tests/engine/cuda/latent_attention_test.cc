// Attention with one key for all heads on a device, over KV in bfloat16, int8
// and fp8: against sums in double, and its two ways (spans apart, tiles whole)
// against each other to the bit.
#include "engine/cuda/latent_attention.h"

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
#include "engine/float_convert.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/fp8_pages.h"

namespace baton::engine::cuda {
namespace {

enum class LatentWay { kTiles, kSpans };

struct LatentShape {
  int32_t heads, key_dim, value_dim, block_size;
};

class LatentAttentionTest : public DeviceTest,
                            public testing::WithParamInterface<KvDtype> {
 protected:
  // A sequence of `length` tokens in shuffled blocks; memory that holds none of
  // its tokens is NaN, as are the scales there.
  void Make(const LatentShape& shape, int32_t length) {
    shape_ = shape;
    length_ = length;
    layout_ = {};
    layout_.num_layers = 1;
    layout_.block_size = shape.block_size;
    layout_.num_kv_heads = 1;
    layout_.head_dim = shape.key_dim;
    layout_.shared_value_dim = shape.value_dim;
    layout_.dtype = GetParam();
    layout_.num_blocks = layout_.BlocksFor(length) + 3;
    blocks_.resize(layout_.num_blocks);
    std::iota(blocks_.begin(), blocks_.end(), 0);
    std::mt19937 bits(5);
    std::shuffle(blocks_.begin(), blocks_.end(), bits);
    keys_ = Floats(RandomBf16(int64_t{length} * shape.key_dim, 6));
    std::vector<std::byte> memory(layout_.total_bytes(), std::byte{0xff});
    for (int32_t position = 0; position < length; ++position) {
      WriteKey(position, memory.data());
    }
    queries_ = RandomBf16(int64_t{length} * shape.heads * Stored(), 8, 2.0f);
    for (size_t i = 0; i < queries_.size(); ++i) {
      if (static_cast<int32_t>(i) % Stored() >= shape.key_dim) queries_[i] = 0;
    }
    args_ = {};
    args_.queries = Put(queries_);
    args_.pages = Put(memory);
    args_.page_bytes = layout_.page_bytes();
    args_.head_bytes = layout_.head_bytes();
    args_.scales_offset = layout_.KeyScalesOffset();
    args_.block_size = layout_.block_size;
    args_.kv_dtype = layout_.dtype;
    args_.block_tables = Put(blocks_);
    args_.num_heads = shape.heads;
    args_.num_kv_heads = 1;
    args_.head_dim = shape.key_dim;
    args_.stored_head_dim = Stored();
    args_.value_dim = shape.value_dim;
    args_.out_step = shape.value_dim + 8;
    args_.score_factor = ScoreFactor(1.0 / std::sqrt(shape.key_dim));
    args_.out_stride = shape.heads * args_.out_step + 4;
  }

  // As the CPU backend writes it, and in fp8 as it would; what is written then
  // is the key. What fills it up is zero.
  void WriteKey(int32_t position, std::byte* memory) {
    float* const key = keys_.data() + int64_t{position} * shape_.key_dim;
    const absl::Span<float> row(key, shape_.key_dim);
    if (GetParam() == KvDtype::kFp8) {
      const Fp8Row rounded = RoundToFp8(row);
      WriteFp8(layout_, memory, /*layer=*/0, blocks_, position, /*head=*/0,
               KvPart::kKeys, rounded);
      const std::vector<float> values = rounded.Values();
      std::copy(values.begin(), values.end(), key);
      return;
    }
    const cpu::Kernels& kernels = *cpu::FindKernels("portable").value();
    cpu::KvPages(kernels, layout_, memory)
        .WriteKey(0, blocks_, position, /*kv_head=*/0, key);
    if (GetParam() == KvDtype::kInt8) {
      std::vector<int8_t> q(shape_.key_dim);
      int32_t sum;
      const float scale = kernels.quantize(key, shape_.key_dim, q.data(), &sum);
      for (int32_t i = 0; i < shape_.key_dim; ++i) key[i] = scale * q[i];
      return;
    }
    auto* const to = reinterpret_cast<uint16_t*>(PartAt(
        layout_, memory, /*layer=*/0, blocks_, position, 0, KvPart::kKeys));
    for (int32_t i = shape_.key_dim; i < Stored(); ++i) {
      to[ElementPlace(layout_, position, i, KvPart::kKeys)] = 0;
    }
  }

  int32_t Stored() const { return layout_.stored_head_dim(); }

  std::vector<double> Expected(int32_t position, int32_t head) const {
    const uint16_t* const query =
        queries_.data() + (int64_t{position} * shape_.heads + head) * Stored();
    std::vector<double> weights;
    double max = -1e30;
    for (int32_t at = 0; at <= position; ++at) {
      double score = 0;
      for (int32_t i = 0; i < shape_.key_dim; ++i) {
        score += double{Bf16ToFloat(query[i])} *
                 keys_[int64_t{at} * shape_.key_dim + i];
      }
      weights.push_back(score / std::sqrt(shape_.key_dim));
      max = std::max(max, weights.back());
    }
    double sum = 0;
    for (double& w : weights) sum += w = std::exp(w - max);
    std::vector<double> out(shape_.value_dim);
    for (int32_t at = 0; at <= position; ++at) {
      for (int32_t i = 0; i < shape_.value_dim; ++i) {
        out[i] += weights[at] / sum * keys_[int64_t{at} * shape_.key_dim + i];
      }
    }
    return out;
  }

  // Runs the tokens [first, first + count) and gives their rows of the output.
  std::vector<uint16_t> Run(int32_t first, int32_t count, LatentWay way) {
    const int32_t tile_rows =
        way == LatentWay::kSpans ? 1 : LatentTileRows(shape_.heads);
    std::vector<QueryTile> tiles;
    int32_t max_spans = 0;
    for (int32_t i = 0; i < count; i += tile_rows) {
      tiles.push_back({first + i, i, std::min(tile_rows, count - i), first + i,
                       /*block_table=*/0});
      max_spans = std::max(max_spans, SpansOf(first + i, 0));
    }
    // A tile that is not there, and a span more than any tile has.
    tiles.push_back({});
    args_.tiles = Put(tiles);
    args_.num_tiles = static_cast<int32_t>(tiles.size());
    args_.max_spans = 0;
    if (way == LatentWay::kSpans) {
      args_.max_spans = max_spans + 1;
      const int64_t pieces =
          int64_t{args_.num_tiles} * shape_.heads * args_.max_spans;
      args_.span_sums = Take<float>(pieces * shape_.value_dim);
      args_.span_states = Take<float>(pieces * 2);
      args_.span_counts = Put(std::vector<uint32_t>(Counters(), 0));
    }
    args_.out = Take<uint16_t>(count * args_.out_stride);
    RunAttention(args_, stream().handle());
    if (way == LatentWay::kSpans) {
      EXPECT_THAT(Get(args_.span_counts, Counters()), testing::Each(0u));
    }
    return Get(args_.out, count * args_.out_stride);
  }
  int64_t Counters() const {
    return int64_t{args_.num_tiles} * LatentBlocks(shape_.heads, 1);
  }

  void ExpectRight(const std::vector<uint16_t>& out, int32_t first,
                   int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      const uint16_t* const row = out.data() + i * args_.out_stride;
      for (int64_t at = 0; at < args_.out_stride; ++at) {
        const bool is_result = at < shape_.heads * args_.out_step &&
                               at % args_.out_step < shape_.value_dim;
        ASSERT_EQ(row[at] == 0xffff, !is_result) << at;
      }
      for (int32_t head = 0; head < shape_.heads; ++head) {
        const std::vector<double> expected = Expected(first + i, head);
        for (int32_t e = 0; e < shape_.value_dim; ++e) {
          // Weights and results are bfloat16; values are about 1. Where there
          // are scales, weights are rounded with the values'.
          ASSERT_NEAR(Bf16ToFloat(row[head * args_.out_step + e]), expected[e],
                      0.02)
              << "position " << first + i << " head " << head << " element "
              << e;
        }
      }
    }
  }

  LatentShape shape_;
  int32_t length_ = 0;
  KvLayout layout_;
  std::vector<BlockId> blocks_;
  std::vector<float> keys_;
  std::vector<uint16_t> queries_;
  AttentionArgs args_;
};

INSTANTIATE_TEST_SUITE_P(KvDtypes, LatentAttentionTest,
                         testing::ValuesIn(kKvDtypes), [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

// Heads that fill a block, do not, are several blocks' and whose tokens share
// blocks otherwise than tiles are cut; keys that are filled up.
std::vector<LatentShape> LatentShapes() {
  return {{4, 44, 32, 16},  {32, 48, 32, 32}, {6, 60, 48, 64},
          {20, 64, 48, 16}, {65, 44, 32, 16}, {16, 576, 512, 16}};
}

TEST_P(LatentAttentionTest, IsThatOfSumsInDouble) {
  for (const LatentShape& shape : LatentShapes()) {
    const bool all = large() || shape.heads * shape.key_dim < 500;
    const int32_t length = large() ? 600 : 90;
    Make(shape, length);
    const int32_t first = all ? 0 : length - 9;
    ExpectRight(Run(first, length - first, LatentWay::kTiles), first,
                length - first);
  }
}

TEST_P(LatentAttentionTest, SpansApartGiveTheSameBitsAsTiles) {
  for (const LatentShape& shape : LatentShapes()) {
    // Several spans.
    const int32_t length = 530;
    Make(shape, length);
    const bool all = large() || shape.heads * shape.key_dim < 500;
    for (const int32_t first : {0, 63, 255, 256, 525}) {
      if (!all && first != 63 && first != 525) continue;
      const int32_t count = std::min(all ? 5 : 2, length - first);
      const std::vector<uint16_t> tiles = Run(first, count, LatentWay::kTiles);
      EXPECT_EQ(tiles, Run(first, count, LatentWay::kSpans)) << first;
      ExpectRight(tiles, first, count);
    }
  }
}

// More spans than there is room for the states of.
TEST_P(LatentAttentionTest, ManySpansAreMergedInTheirOrder) {
  const int32_t length =
      large() || GetParam() == KvDtype::kBf16 ? 33'100 : 2400;
  Make({33, 44, 32, 64}, length);
  for (int repeat = 0; repeat < (large() ? 20 : 1); ++repeat) {
    EXPECT_EQ(Run(length - 1, 1, LatentWay::kSpans),
              Run(length - 1, 1, LatentWay::kTiles));
  }
}

TEST_P(LatentAttentionTest, CutsOfAPromptGiveTheSameBits) {
  for (const LatentShape& shape :
       {LatentShape{4, 44, 32, 16}, LatentShape{20, 60, 48, 32}}) {
    Make(shape, 300);
    const std::vector<uint16_t> all = Run(0, 300, LatentWay::kTiles);
    for (const auto& [first, count] : std::vector<std::pair<int32_t, int32_t>>{
             {0, 1}, {1, 31}, {32, 64}, {250, 50}, {299, 1}, {17, 100}}) {
      const std::vector<uint16_t> part = Run(first, count, LatentWay::kTiles);
      EXPECT_TRUE(std::equal(part.begin(), part.end(),
                             all.begin() + first * args_.out_stride))
          << first << " " << count;
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
