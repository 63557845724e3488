// What becomes of rows with latent attention between products and attention, on
// a device: against what the host makes of the same numbers.
#include "engine/cuda/latent.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/e4m3.h"
#include "engine/float_convert.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/fp8_pages.h"

namespace baton::engine::cuda {
namespace {

constexpr float kEps = 1e-6f;
constexpr uint16_t kUntouched = 0xffff;

// RMSNorm of x[first, first + count).
std::vector<double> NormOnHost(const std::vector<float>& x, int64_t first,
                               int32_t count,
                               const std::vector<float>& weights) {
  double squares = 0;
  for (int32_t i = 0; i < count; ++i) {
    squares += double{x[first + i]} * x[first + i];
  }
  const double inverse = 1.0 / std::sqrt(squares / count + double{kEps});
  std::vector<double> normed(count);
  for (int32_t i = 0; i < count; ++i) {
    normed[i] = x[first + i] * inverse * weights[i];
  }
  return normed;
}

// The `dim` elements from `first` on, turned; of a table as LatentKeysArgs has
// it.
std::vector<double> TurnOnHost(const std::vector<float>& x, int64_t first,
                               int32_t dim, const std::vector<float>& rope,
                               int32_t stride, int32_t position) {
  const int32_t half = dim / 2;
  std::vector<double> turned(dim);
  for (int32_t i = 0; i < half; ++i) {
    const double a = x[first + i];
    const double b = x[first + half + i];
    const double cosine = rope[position * stride + i];
    const double sine = rope[position * stride + stride / 2 + i];
    turned[i] = a * cosine - b * sine;
    turned[half + i] = b * cosine + a * sine;
  }
  return turned;
}

void ExpectBf16(uint16_t bits, double expected) {
  ASSERT_NEAR(Bf16ToFloat(bits), expected, 1e-5 + std::abs(expected) / 250);
}

class LatentKeysTest : public DeviceTest,
                       public testing::WithParamInterface<KvDtype> {};

INSTANTIATE_TEST_SUITE_P(KvDtypes, LatentKeysTest, testing::ValuesIn(kKvDtypes),
                         [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

// What a stored element stands for.
float StoredValue(const KvLayout& layout, const std::vector<std::byte>& memory,
                  const std::vector<BlockId>& blocks, int32_t position,
                  int32_t element) {
  // PartAt writes nothing.
  std::byte* const part =
      PartAt(layout, const_cast<std::byte*>(memory.data()), /*layer=*/0, blocks,
             position, /*kv_head=*/0, KvPart::kKeys);
  const int64_t at = ElementPlace(layout, position, element, KvPart::kKeys);
  if (layout.dtype == KvDtype::kBf16) {
    return Bf16ToFloat(reinterpret_cast<const uint16_t*>(part)[at]);
  }
  const float scale = reinterpret_cast<const float*>(
      part + layout.KeyScalesOffset())[position % layout.block_size];
  const auto byte = static_cast<uint8_t>(part[at]);
  return scale * (layout.dtype == KvDtype::kInt8
                      ? static_cast<float>(static_cast<int8_t>(byte))
                      : E4m3ToFloat(byte));
}

TEST_P(LatentKeysTest, AreNormalizedAndTurned) {
  struct Dims {
    int32_t query_rank, rank, rope_dim;
  };
  for (const Dims& d :
       {Dims{24, 48, 12}, Dims{0, 32, 8}, Dims{1536, 512, 64}}) {
    constexpr int32_t kRows = 5;
    const int32_t width = d.query_rank + d.rank + d.rope_dim;
    KvLayout layout;
    layout.num_layers = 1;
    layout.num_blocks = 4;
    layout.num_kv_heads = 1;
    layout.head_dim = d.rank + d.rope_dim;
    layout.shared_value_dim = d.rank;
    layout.dtype = GetParam();
    const std::vector<BlockId> blocks = {2, 0, 3, 1};
    // A row is not there.
    const std::vector<RowPlace> places = {
        {0, 0}, {17, 0}, {-1, 0}, {63, 0}, {33, 0}};
    const std::vector<float> x = Floats(RandomBf16(kRows * width, 3));
    const std::vector<float> norm = Floats(RandomBf16(d.rank, 4));
    const std::vector<float> query_norm = Floats(RandomBf16(d.query_rank, 5));
    const std::vector<float> rope = Floats(RandomBf16(64 * layout.head_dim, 6));
    LatentKeysArgs args;
    args.from = Put(x);
    args.places = Put(places);
    args.rows = kRows;
    args.query_rank = d.query_rank;
    args.rank = d.rank;
    args.rope_dim = d.rope_dim;
    args.norm = Put(norm);
    args.query_norm = Put(query_norm);
    args.eps = kEps;
    args.rope = Put(rope);
    args.rope_stride = layout.head_dim;
    args.query_stride = PaddedInputs(d.query_rank);
    args.queries = Take<uint16_t>(kRows * args.query_stride);
    args.pages = Take<std::byte>(layout.total_bytes());
    args.page_bytes = layout.page_bytes();
    args.scales_offset = layout.KeyScalesOffset();
    args.block_size = layout.block_size;
    args.stored_head_dim = layout.stored_head_dim();
    args.kv_dtype = layout.dtype;
    args.block_tables = Put(blocks);
    RunLatentKeys(args, stream().handle());
    const auto queries = Get(args.queries, kRows * args.query_stride);
    const auto memory = Get(args.pages, layout.total_bytes());
    int64_t written = 0;
    for (int32_t row = 0; row < kRows; ++row) {
      const int32_t position = places[row].position;
      const uint16_t* const query = queries.data() + row * args.query_stride;
      for (int32_t i = 0; i < args.query_stride; ++i) {
        if (position >= 0 && i < d.query_rank) {
          ExpectBf16(query[i], NormOnHost(x, int64_t{row} * width, d.query_rank,
                                          query_norm)[i]);
        } else {
          ASSERT_EQ(query[i], kUntouched);
        }
      }
      if (position < 0) continue;
      const int64_t first = int64_t{row} * width + d.query_rank;
      std::vector<double> expected = NormOnHost(x, first, d.rank, norm);
      const std::vector<double> turned = TurnOnHost(
          x, first + d.rank, d.rope_dim, rope, layout.head_dim, position);
      expected.insert(expected.end(), turned.begin(), turned.end());
      double largest = 0;
      for (const double value : expected) {
        largest = std::max(largest, std::abs(value));
      }
      expected.resize(layout.stored_head_dim());
      for (int32_t i = 0; i < layout.stored_head_dim(); ++i) {
        const double rounding =
            layout.dtype == KvDtype::kBf16 ? std::abs(expected[i]) / 250
            : layout.dtype == KvDtype::kInt8
                ? largest / 250
                : std::abs(expected[i]) / 15 + largest / 400'000;
        ASSERT_NEAR(StoredValue(layout, memory, blocks, position, i),
                    expected[i], 1e-6 + rounding)
            << row << " " << i;
      }
      written += layout.stored_head_dim() * layout.element_bytes() +
                 (layout.has_scales() ? 4 : 0);
    }
    // Nothing else. Some of what is written looks as what was there.
    const int64_t left =
        std::count(memory.begin(), memory.end(), std::byte{0xff});
    EXPECT_GE(left, layout.total_bytes() - written);
  }
}

class LatentRowsTest : public DeviceTest {};

TEST_F(LatentRowsTest, QueriesAreCutAndTurned) {
  constexpr int32_t kRows = 3;
  constexpr int32_t kHeads = 5;
  constexpr int32_t kNope = 20;
  constexpr int32_t kRope = 12;
  const std::vector<RowPlace> places = {{9, 0}, {-1, 0}, {0, 0}};
  const std::vector<float> x =
      Floats(RandomBf16(kRows * kHeads * (kNope + kRope), 3));
  const std::vector<float> rope = Floats(RandomBf16(10 * 60, 6));
  LatentQueriesArgs args;
  args.from = Put(x);
  args.places = Put(places);
  args.rows = kRows;
  args.heads = kHeads;
  args.nope_dim = kNope;
  args.rope_dim = kRope;
  args.rope = Put(rope);
  args.rope_stride = 60;
  args.nope_stride = 64;
  args.nope = Take<uint16_t>(kRows * kHeads * args.nope_stride);
  args.rank = 48;
  args.stored_head_dim = 64;
  args.queries = Take<uint16_t>(kRows * kHeads * args.stored_head_dim);
  RunLatentQueries(args, stream().handle());
  const auto nope = Get(args.nope, kRows * kHeads * args.nope_stride);
  const auto queries = Get(args.queries, kRows * kHeads * args.stored_head_dim);
  for (int32_t row = 0; row < kRows; ++row) {
    const int32_t position = places[row].position;
    for (int32_t head = 0; head < kHeads; ++head) {
      const int64_t at = row * kHeads + head;
      const int64_t from = at * (kNope + kRope);
      for (int32_t i = 0; i < args.nope_stride; ++i) {
        const uint16_t value = nope[at * args.nope_stride + i];
        ASSERT_EQ(value, position >= 0 && i < kNope ? FloatToBf16(x[from + i])
                                                    : kUntouched);
      }
      const uint16_t* const query = queries.data() + at * args.stored_head_dim;
      for (int32_t i = 0; i < args.stored_head_dim; ++i) {
        if (position < 0 || i < args.rank) {
          ASSERT_EQ(query[i], kUntouched);
        } else if (i < args.rank + kRope) {
          ExpectBf16(query[i], TurnOnHost(x, from + kNope, kRope, rope, 60,
                                          position)[i - args.rank]);
        } else {
          ASSERT_EQ(query[i], 0);
        }
      }
    }
  }
}

TEST_F(LatentRowsTest, TilesHaveEachHeadsRows) {
  for (const int32_t rows : {1, 7, 16, 33, 300}) {
    constexpr int32_t kHeads = 6;
    HeadTilesArgs args;
    args.rows = rows;
    args.heads = kHeads;
    args.tiling = HeadTilingOf(rows, kHeads, WeightFormat::kBf16);
    args.tiles = Take<RowTile>(args.tiling.num_tiles);
    args.x_rows = Take<int32_t>(args.tiling.places);
    RunHeadTiles(args, stream().handle());
    ASSERT_EQ(args.tiling.places, rows * kHeads);
    const auto x_rows = Get(args.x_rows, args.tiling.places);
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int32_t row = 0; row < rows; ++row) {
        ASSERT_EQ(x_rows[head * rows + row], row * kHeads + head);
      }
    }
    int32_t next = 0;
    for (const RowTile& tile : Get(args.tiles, args.tiling.num_tiles)) {
      ASSERT_EQ(tile.first, next);
      ASSERT_EQ(tile.expert, next / rows);
      ASSERT_GT(tile.rows, 0);
      ASSERT_LE(tile.rows, args.tiling.tile_rows);
      next += tile.rows;
      // No tile has two heads' rows.
      ASSERT_LE(next, (tile.expert + 1) * rows);
    }
    EXPECT_EQ(next, rows * kHeads);
  }
}

TEST_F(LatentRowsTest, ProductsOfHeadsGoWhereTheyBelong) {
  constexpr int32_t kRows = 6;
  constexpr int32_t kHeads = 4;
  constexpr int32_t kSize = 48;
  constexpr int32_t kFirstRow = 130;
  const std::vector<float> made =
      Floats(RandomBf16(kHeads * kRows * kSize, 3, 1.7f));
  struct To {
    InputOrder order;
    int32_t head_step;
  };
  for (const To& to :
       {To{InputOrder::kNatural, 64}, To{InputOrder::kNatural, 48},
        To{InputOrder::kStaged, 48}}) {
    RoundHeadsArgs args;
    args.from = Put(made);
    args.rows = kRows;
    args.heads = kHeads;
    args.size = kSize;
    args.head_step = to.head_step;
    args.row_stride = 256;
    args.first_row = kFirstRow;
    args.order = to.order;
    const int64_t count = StagedRows(kFirstRow + kRows) * args.row_stride;
    args.to = Take<uint16_t>(count);
    RunRoundHeads(args, stream().handle());
    std::vector<uint16_t> expected(count, kUntouched);
    for (int32_t head = 0; head < kHeads; ++head) {
      for (int32_t row = 0; row < kRows; ++row) {
        for (int32_t i = 0; i < kSize; ++i) {
          expected[PlaceOfInput(to.order, kFirstRow + row,
                                head * to.head_step + i, args.row_stride)] =
              FloatToBf16(made[(head * kRows + row) * kSize + i]);
        }
      }
    }
    EXPECT_EQ(Get(args.to, count), expected);
  }
}

}  // namespace
}  // namespace baton::engine::cuda
