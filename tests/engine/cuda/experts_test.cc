// The kernels of layers with experts, on a device: against what the host makes
// of the same numbers, and products with experts against those of each expert's
// matrix alone, to the bit.
#include "engine/cuda/experts.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/weight_format.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/host_tiles.h"

namespace baton::engine::cuda {
namespace {

// What a mixture has, and how its rows are cut.
struct Sizes {
  int32_t rows, experts, per_token, tile_rows;
  bool normalized = true;
};

class ExpertsTest : public DeviceTest {
 protected:
  struct Routed {
    std::vector<ExpertChoice> choices;
    std::vector<int32_t> place_rows;
    std::vector<RowTile> tiles;
    uint32_t reads = 0;
  };

  // Rows that are not there have no position.
  Routed Route(const Sizes& s, const std::vector<float>& logits,
               const std::vector<RowPlace>& places, bool first = true,
               uint32_t reads = 77) {
    const int32_t turns = s.rows * s.per_token;
    const int32_t read = std::min(turns, s.experts);
    RouteArgs args;
    args.logits = Put(logits);
    args.stride = s.experts + 3;
    args.rows = s.rows;
    args.experts = s.experts;
    args.per_token = s.per_token;
    args.normalized = s.normalized;
    if (!places.empty()) args.places = Put(places);
    args.choices = Take<ExpertChoice>(turns);
    args.place_rows = Take<int32_t>(turns);
    args.tile_rows = s.tile_rows;
    args.num_tiles = read + (turns - read) / s.tile_rows;
    args.tiles = Take<RowTile>(args.num_tiles);
    args.reads = Put<uint32_t>({reads});
    args.first = first;
    RunRoute(args, stream().handle());
    Routed routed;
    routed.choices = Get(args.choices, turns);
    routed.place_rows = Get(args.place_rows, turns);
    routed.tiles = Get(args.tiles, args.num_tiles);
    routed.reads = Get(args.reads, 1)[0];
    return routed;
  }

  // The logits of a row, at its stride.
  static std::vector<float> Logits(const Sizes& s, uint32_t seed) {
    std::mt19937 bits(seed);
    // Few values: some are equal.
    std::uniform_int_distribution<int32_t> value(-40, 40);
    const int64_t stride = s.experts + 3;
    std::vector<float> logits(s.rows * stride,
                              std::numeric_limits<float>::infinity());
    for (int32_t r = 0; r < s.rows; ++r) {
      for (int32_t e = 0; e < s.experts; ++e) {
        const int32_t drawn = value(bits);
        logits[r * stride + e] =
            drawn == 0 && e % 2 == 0 ? -0.0f : 0.125f * drawn;
      }
    }
    return logits;
  }

  // Each place is one row's turn with one expert, an expert's lie together, and
  // so do its tiles, which cover them.
  static void ExpectSorted(const Sizes& s, const Routed& routed) {
    std::vector<int32_t> expert_of(routed.choices.size(), -1);
    int32_t there = 0;
    std::set<int32_t> read;
    for (size_t i = 0; i < routed.choices.size(); ++i) {
      const ExpertChoice& choice = routed.choices[i];
      if (choice.expert < 0) {
        EXPECT_EQ(choice.place, -1);
        continue;
      }
      ASSERT_LT(choice.expert, s.experts);
      ASSERT_GE(choice.place, 0);
      ASSERT_LT(choice.place, static_cast<int32_t>(expert_of.size()));
      ASSERT_EQ(expert_of[choice.place], -1) << "two at a place";
      expert_of[choice.place] = choice.expert;
      EXPECT_EQ(routed.place_rows[choice.place],
                static_cast<int32_t>(i) / s.per_token);
      read.insert(choice.expert);
      ++there;
    }
    EXPECT_TRUE(std::is_sorted(expert_of.begin(), expert_of.begin() + there));
    EXPECT_EQ(routed.reads, read.size());
    int32_t covered = 0;
    bool ended = false;
    for (const RowTile& tile : routed.tiles) {
      if (tile.rows == 0) {
        ended = true;
        continue;
      }
      ASSERT_FALSE(ended) << "a tile behind one that is not there";
      ASSERT_EQ(tile.first, covered);
      ASSERT_LE(tile.rows, s.tile_rows);
      for (int32_t i = 0; i < tile.rows; ++i) {
        ASSERT_EQ(expert_of[tile.first + i], tile.expert);
      }
      covered += tile.rows;
      // Only the last one of an expert is not full.
      if (tile.rows < s.tile_rows && covered < there) {
        EXPECT_NE(expert_of[covered], tile.expert);
      }
    }
    EXPECT_EQ(covered, there);
  }
};

// What the host makes of a row: experts by falling logits, of equal ones the
// first, and their shares.
std::vector<ExpertChoice> ChooseOnHost(const Sizes& s, const float* logits) {
  std::vector<int32_t> order(s.experts);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  double sum = 0;
  for (int32_t i = 0; i < (s.normalized ? s.per_token : s.experts); ++i) {
    sum += std::exp(double{logits[order[i]]} - logits[order[0]]);
  }
  std::vector<ExpertChoice> choices(s.per_token);
  for (int32_t i = 0; i < s.per_token; ++i) {
    choices[i].expert = order[i];
    choices[i].share = static_cast<float>(
        std::exp(double{logits[order[i]]} - logits[order[0]]) / sum);
  }
  return choices;
}

TEST_F(ExpertsTest, RowsGoToTheExpertsWithTheLargestLogits) {
  std::vector<Sizes> cases = {
      {1, 8, 2, 8},         {1, 128, 8, 8},  {5, 1, 1, 8},
      {7, 5, 5, 16, false}, {64, 60, 4, 8},  {65, 128, 8, 64, false},
      {33, 1024, 32, 8},    {300, 9, 3, 64}, {130, 33, 2, 128}};
  if (large()) cases.push_back({4096, 128, 8, 128});
  for (const Sizes& s : cases) {
    SCOPED_TRACE(testing::Message() << s.rows << " rows, " << s.experts);
    const std::vector<float> logits = Logits(s, 5 + s.rows);
    const Routed routed = Route(s, logits, /*places=*/{});
    ExpectSorted(s, routed);
    for (int32_t r = 0; r < s.rows; ++r) {
      const std::vector<ExpertChoice> expected =
          ChooseOnHost(s, logits.data() + int64_t{r} * (s.experts + 3));
      for (int32_t i = 0; i < s.per_token; ++i) {
        const ExpertChoice& choice = routed.choices[r * s.per_token + i];
        ASSERT_EQ(choice.expert, expected[i].expert) << r << " " << i;
        ASSERT_NEAR(choice.share, expected[i].share, 1e-5f * expected[i].share)
            << r << " " << i;
      }
    }
  }
}

// As in graphs with room for more rows than a step has.
TEST_F(ExpertsTest, RowsThatAreNotThereReadNoExpert) {
  for (const int32_t rows : {16, 96}) {
    const Sizes s = {rows, 40, 4, 8};
    std::vector<RowPlace> places(s.rows);
    for (int32_t r = 0; r < s.rows; ++r) {
      if (r % 3 == 1) places[r].position = r;
    }
    const Routed routed = Route(s, Logits(s, 3), places);
    ExpectSorted(s, routed);
    for (int32_t r = 0; r < s.rows; ++r) {
      const ExpertChoice& first = routed.choices[r * s.per_token];
      EXPECT_EQ(first.expert >= 0, r % 3 == 1) << r;
      if (r % 3 != 1) {
        EXPECT_EQ(first.share, 0.0f);
      }
    }
  }
  const Sizes s = {4, 10, 2, 8};
  const Routed none = Route(s, Logits(s, 3), std::vector<RowPlace>(4));
  ExpectSorted(s, none);
  EXPECT_EQ(none.reads, 0u);
}

TEST_F(ExpertsTest, ReadsAddUpOverLayers) {
  const Sizes s = {1, 10, 3, 8};
  EXPECT_EQ(Route(s, Logits(s, 4), {}, /*first=*/false, 7).reads, 10u);
  EXPECT_EQ(Route(s, Logits(s, 4), {}, /*first=*/true, 7).reads, 3u);
}

// Where a row's numbers are none, it still goes to as many experts, and others
// go where they went.
TEST_F(ExpertsTest, RowsThatAreNoNumbersLeaveOthersAlone) {
  const Sizes s = {6, 40, 4, 8};
  std::vector<float> logits = Logits(s, 9);
  const Routed before = Route(s, logits, {});
  const int64_t stride = s.experts + 3;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int32_t e = 0; e < s.experts; ++e) {
    logits[1 * stride + e] = std::nanf("");
    logits[3 * stride + e] = e == 20 ? -std::nanf("") : -kInfinity;
    logits[4 * stride + e] = e % 2 == 0 ? kInfinity : -1.0f;
  }
  const Routed routed = Route(s, logits, {});
  ExpectSorted(s, routed);
  for (int32_t r = 0; r < s.rows; ++r) {
    std::set<int32_t> experts;
    for (int32_t i = 0; i < s.per_token; ++i) {
      const ExpertChoice& choice = routed.choices[r * s.per_token + i];
      experts.insert(choice.expert);
      if (r == 1 || r == 3 || r == 4) {
        EXPECT_TRUE(std::isnan(choice.share)) << r;
        continue;
      }
      EXPECT_EQ(choice.expert, before.choices[r * s.per_token + i].expert);
      EXPECT_EQ(choice.share, before.choices[r * s.per_token + i].share);
    }
    EXPECT_EQ(experts.size(), 4u) << r;
  }
}

TEST_F(ExpertsTest, OutputsAreAddedInTheOrderOfTheirShares) {
  for (const int32_t size : {5, 2052}) {
    constexpr int32_t kRows = 3;
    constexpr int32_t kPerToken = 4;
    std::vector<ExpertChoice> choices(kRows * kPerToken);
    for (int32_t i = 0; i < kRows * kPerToken; ++i) {
      choices[i] = {i % 7, (5 * i) % 12, 0.3f / (1 + i % kPerToken)};
    }
    choices[4] = choices[5] = choices[6] = choices[7] = {-1, -1, 0.0f};
    const std::vector<float> said = Floats(RandomBf16(int64_t{12} * size, 21));
    const std::vector<float> before =
        Floats(RandomBf16(int64_t{kRows} * size, 22));
    MixArgs args;
    args.choices = Put(choices);
    args.rows = kRows;
    args.per_token = kPerToken;
    args.said = Put(said);
    args.size = size;
    for (const bool add : {false, true}) {
      args.add = add;
      args.out = Put(before);
      RunMix(args, stream().handle());
      const std::vector<float> out = Get(args.out, int64_t{kRows} * size);
      for (int32_t r = 0; r < kRows; ++r) {
        for (int32_t i = 0; i < size; ++i) {
          float sum = 0;
          for (int32_t k = 0; k < kPerToken; ++k) {
            const ExpertChoice& choice = choices[r * kPerToken + k];
            if (choice.expert < 0) continue;
            const volatile float term =
                choice.share * said[int64_t{choice.place} * size + i];
            sum += term;
          }
          const int64_t at = int64_t{r} * size + i;
          ASSERT_EQ(out[at], add ? before[at] + sum : sum) << r << " " << i;
        }
      }
    }
  }
}

TEST(ExpertTilingTest, HasATileForWhateverRowsChoose) {
  for (const int32_t experts : {1, 8, 128}) {
    for (int32_t places = 1; places < 20000; places += places / 3 + 1) {
      const ExpertTiling tiling = TilingOf(places, experts);
      // One expert has what is left when all others have one more than whole
      // tiles.
      const int32_t others = std::min(experts, places) - 1;
      EXPECT_GE(
          tiling.num_tiles,
          others + (places - others + tiling.tile_rows - 1) / tiling.tile_rows)
          << places << " " << experts;
      EXPECT_LE(tiling.num_tiles, places);
    }
  }
  EXPECT_EQ(TilingOf(8, 128).kernel, MatmulKernel::kStream8);
  EXPECT_EQ(TilingOf(4096 * 8, 128).kernel, MatmulKernel::kTile128);
}

class ExpertMatmulTest : public DeviceTest,
                         public testing::WithParamInterface<WeightFormat> {};

INSTANTIATE_TEST_SUITE_P(Formats, ExpertMatmulTest,
                         testing::ValuesIn(kWeightFormats),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST_P(ExpertMatmulTest, EachRowHasItsExpertsProduct) {
  constexpr int32_t kExperts = 5;
  const WeightFormat format = GetParam();
  for (const bool gated : {false, true}) {
    for (const int32_t inputs : {100, 576}) {
      const int32_t tiles = 6;
      const int32_t outputs = gated ? 88 : 90;  // the last tile is not full
      const int32_t padded = PaddedInputs(inputs);
      // Of all experts, one after another.
      const std::vector<float> w = Floats(RandomBf16(
          int64_t{kExperts} * tiles * kTileOutputs * inputs, 31, 0.5f));
      WeightMatrix matrix;
      matrix.rows = kExperts * tiles * kTileOutputs;
      matrix.columns = inputs;
      matrix.values.dtype = DType::kF32;
      matrix.values.shape = {matrix.rows, inputs};
      matrix.values.bytes =
          absl::MakeSpan(reinterpret_cast<const std::byte*>(w.data()),
                         w.size() * sizeof(float));
      std::vector<std::byte> packed(kExperts * tiles *
                                    TileBytes(format, padded));
      std::vector<float> scales(matrix.rows);
      PackTiles(format, {{&matrix, 0, matrix.rows}}, inputs, 0,
                kExperts * tiles, packed.data(), scales.data());
      DeviceMatrix first;
      first.tiles = Put(packed);
      first.format = format;
      first.outputs = outputs;
      first.inputs = inputs;
      first.output_tiles = tiles;
      first.padded_inputs = padded;
      const float* const all_scales =
          HasOutputScales(format) ? Put(scales) : nullptr;
      first.scales = all_scales;

      constexpr int32_t kRows = 40;
      const int64_t x_stride = padded + 8;
      std::vector<uint16_t> x = RandomBf16(kRows * x_stride, 32);
      for (int32_t r = 0; r < kRows; ++r) {
        std::fill_n(x.begin() + r * x_stride + inputs, x_stride - inputs, 0);
      }
      const uint16_t* const device_x = Put(x);
      // Experts with no row, with one, with whole tiles and with more.
      const int32_t rows_of[kExperts] = {16, 0, 1, 66, 130};
      std::vector<int32_t> place_rows;
      for (int32_t e = 0; e < kExperts; ++e) {
        for (int32_t i = 0; i < rows_of[e]; ++i) {
          place_rows.push_back((7 * i + e) % kRows);
        }
      }
      const auto places = static_cast<int32_t>(place_rows.size());
      const int64_t width = (gated ? outputs / 2 : outputs) + 3;
      const MatmulOutput output =
          gated ? MatmulOutput::kSwiglu : MatmulOutput::kStore;

      // Each expert's product alone.
      const auto run = [&](auto args_of, auto run_it) {
        auto args = args_of;
        MatmulArgs& m = args.first;
        float* const out = gated ? nullptr : Take<float>((places + 1) * width);
        uint16_t* const half =
            gated ? Take<uint16_t>((places + 1) * width) : nullptr;
        m.out = out;
        m.gated = half;
        m.out_stride = width;
        run_it(args);
        std::vector<float> result;
        if (!gated) return Get(out, (places + 1) * width);
        for (const uint16_t bits : Get(half, (places + 1) * width)) {
          result.push_back(Bf16ToFloat(bits));
        }
        return result;
      };
      ExpertMatmulArgs base;
      base.first.w = first;
      base.first.x_stride = x_stride;
      const std::vector<float> expected =
          run(base, [&](const ExpertMatmulArgs& args) {
            int32_t place = 0;
            for (int32_t e = 0; e < kExperts; ++e) {
              if (rows_of[e] == 0) continue;
              std::vector<uint16_t> own;
              for (int32_t i = 0; i < rows_of[e]; ++i) {
                const auto from = x.begin() + place_rows[place + i] * x_stride;
                own.insert(own.end(), from, from + x_stride);
              }
              MatmulArgs one = args.first;
              one.w.tiles += e * first.tile_bytes();
              if (all_scales != nullptr) {
                one.w.scales += e * tiles * kTileOutputs;
              }
              one.x = Put(own);
              one.rows = rows_of[e];
              if (gated) one.gated += place * width;
              if (!gated) one.out += place * width;
              RunMatmul(PlanMatmul(one, output, MatmulKernel::kTile64), one,
                        output, stream().handle());
              place += rows_of[e];
            }
          });
      std::vector<uint16_t> sorted_x;
      for (const int32_t row : place_rows) {
        const auto from = x.begin() + row * x_stride;
        sorted_x.insert(sorted_x.end(), from, from + x_stride);
      }
      const uint16_t* const device_sorted = Put(sorted_x);
      const int32_t* const device_rows = Put(place_rows);
      for (const MatmulKernel kernel :
           {MatmulKernel::kStream8, MatmulKernel::kStream16,
            MatmulKernel::kTile64, MatmulKernel::kTile128}) {
        const ExpertTiling tiling = TilingOf(places, kExperts, kernel);
        std::vector<RowTile> row_tiles;
        int32_t place = 0;
        for (int32_t e = 0; e < kExperts; ++e) {
          for (int32_t i = 0; i < rows_of[e]; i += tiling.tile_rows) {
            row_tiles.push_back(
                {e, place + i, std::min(tiling.tile_rows, rows_of[e] - i)});
          }
          place += rows_of[e];
        }
        ASSERT_LE(static_cast<int32_t>(row_tiles.size()), tiling.num_tiles);
        row_tiles.resize(tiling.num_tiles);
        for (const bool sorted : {false, true}) {
          ExpertMatmulArgs args = base;
          args.first.x = sorted ? device_sorted : device_x;
          args.first.rows = places;
          args.tiles = Put(row_tiles);
          args.num_tiles = tiling.num_tiles;
          args.x_rows = sorted ? nullptr : device_rows;
          EXPECT_TRUE(SameBits(run(args,
                                   [&](const ExpertMatmulArgs& all) {
                                     RunExpertMatmul(tiling, all, output,
                                                     stream().handle());
                                   }),
                               expected))
              << "kernel " << static_cast<int>(kernel) << " " << inputs;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
