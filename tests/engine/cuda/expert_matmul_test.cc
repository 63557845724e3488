// Products with experts, on a device: those of each expert's matrix alone, to
// the bit.
#include "engine/cuda/expert_matmul.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/experts.h"
#include "engine/cuda/matmul_group.h"
#include "engine/cuda/weight_format.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/host_tiles.h"

namespace baton::engine::cuda {
namespace {

TEST(ExpertTilingTest, HasATileForWhateverRowsChoose) {
  for (const bool group : {false, true}) {
    for (const int32_t experts : {1, 8, 128}) {
      for (int32_t turns = 1; turns < 80000; turns += turns / 3 + 1) {
        const ExpertTiling tiling =
            TilingOf(turns, experts, WeightFormat::kBf16, group);
        // One expert has what is left when each of the others has one row.
        const int32_t others = std::min(experts, turns) - 1;
        EXPECT_GE(
            tiling.num_tiles,
            others + (turns - others + tiling.tile_rows - 1) / tiling.tile_rows)
            << turns << " " << experts;
        EXPECT_LE(tiling.num_tiles, turns);
        EXPECT_EQ(tiling.places,
                  tiling.staged ? tiling.num_tiles * tiling.tile_rows : turns);
        EXPECT_LE(tiling.places, MostPlaces(turns, 1, experts, group));
      }
    }
  }
  const auto kernel = [](int32_t turns, bool group) {
    return TilingOf(turns, 128, WeightFormat::kInt4, group).kernel;
  };
  EXPECT_EQ(kernel(8, true), MatmulKernel::kStream8);
  EXPECT_EQ(kernel(4096 * 8, false), MatmulKernel::kTile128);
  EXPECT_EQ(kernel(4096 * 8, true), MatmulKernel::kGroup);
  EXPECT_EQ(TilingOf(80000, 8, WeightFormat::kBf16, true).tile_rows,
            kGroupRows);
  EXPECT_EQ(TilingOf(80000, 8, WeightFormat::kInt4, true).tile_rows,
            kGroupFewRows);
}

TEST(ExpertTilingTest, BlocksHaveWarpsForWhatThereIs) {
  ExpertMatmulArgs args;
  args.first.w.inputs = args.first.w.padded_inputs = args.first.x_stride = 768;
  args.first.w.outputs = 2048;
  args.first.w.output_tiles = 128;
  const auto plan = [&](const ExpertTiling& tiling) {
    args.num_tiles = tiling.num_tiles;
    args.tile_rows = tiling.tile_rows;
    return PlanExpertMatmul(tiling, args, MatmulOutput::kStore);
  };
  const auto by = [](MatmulKernel kernel) { return TilingOf(64, 128, kernel); };
  // Two chunks of inputs.
  const MatmulPlan few = plan(by(MatmulKernel::kStream8));
  EXPECT_EQ(few.shape.threads, 64u);
  EXPECT_EQ(few.shape.x, 128u);
  EXPECT_EQ(few.shape.y, 64u);
  const MatmulPlan many = plan(by(MatmulKernel::kTile64));
  EXPECT_EQ(many.shape.threads, 128u);
  EXPECT_EQ(many.shape.x, 64u);
  EXPECT_EQ(many.shape.y, 32u);
}

// Five experts: with no row, with one, with whole tiles and with more.
class ExpertMatmulTest : public DeviceTest,
                         public testing::WithParamInterface<WeightFormat> {
 protected:
  static constexpr int32_t kExperts = 5;
  static constexpr int32_t kRowsOf[kExperts] = {16, 0, 1, 66, 130};
  static constexpr int32_t kTurns = 213;
  static constexpr int32_t kRows = 40;  // of x
  // What nothing was written to.
  static constexpr float kUntouched = -12345.0f;

  // With `gated`, half of the outputs are the gate's; with `biased`, there are
  // biases, and SwiGLU has a limit.
  void Make(bool gated, bool biased, int32_t outputs, int32_t inputs) {
    gated_ = gated;
    swiglu_limit_ = gated && biased ? 0.8f : 0.0f;
    const WeightFormat format = GetParam();
    const int32_t tiles =
        (gated ? 2 : 1) * OutputTiles(gated ? outputs / 2 : outputs);
    const std::vector<float> w = Floats(RandomBf16(
        int64_t{kExperts} * tiles * kTileOutputs * inputs, 31, 0.5f));
    WeightMatrix matrix;
    matrix.rows = kExperts * tiles * kTileOutputs;
    matrix.columns = inputs;
    matrix.values.dtype = DType::kF32;
    matrix.values.shape = {matrix.rows, inputs};
    matrix.values.bytes = absl::MakeSpan(
        reinterpret_cast<const std::byte*>(w.data()), w.size() * sizeof(float));
    const int32_t padded = PaddedInputs(inputs);
    std::vector<std::byte> packed(kExperts * tiles * TileBytes(format, padded));
    std::vector<float> scales(matrix.rows);
    PackTiles(format, {{&matrix, 0, matrix.rows}}, inputs, 0, kExperts * tiles,
              packed.data(), scales.data());
    first_ = {};
    first_.tiles = Put(packed);
    first_.format = format;
    first_.outputs = outputs;
    first_.inputs = inputs;
    first_.output_tiles = tiles;
    first_.padded_inputs = padded;
    if (HasOutputScales(format)) first_.scales = Put(scales);
    if (biased) first_.bias = Put(Floats(RandomBf16(matrix.rows, 33)));
    x_ = RandomBf16(int64_t{kRows} * padded, 32);
    for (int32_t r = 0; r < kRows; ++r) {
      std::fill_n(x_.begin() + r * padded + inputs, padded - inputs, 0);
    }
  }

  // Which row of x is that of an expert's i-th turn.
  static int32_t SourceOf(int32_t expert, int32_t i) {
    return (7 * i + expert) % kRows;
  }
  int64_t width() const {
    return gated_ ? first_.outputs / 2 : int64_t{first_.outputs};
  }
  MatmulOutput output() const {
    return gated_ ? MatmulOutput::kSwiglu : MatmulOutput::kStore;
  }

  // Has what `run` makes of arguments that have outputs for so many rows, which
  // are `stride` apart.
  template <typename Args, typename Run>
  std::vector<float> OutputsOf(MatmulArgs Args::*of, Args args, int64_t rows,
                               int64_t stride, const Run& run) {
    const int64_t count = rows * stride;
    MatmulArgs& m = args.*of;
    m.out_stride = stride;
    if (gated_) {
      m.gated = Put(std::vector<uint16_t>(count, FloatToBf16(kUntouched)));
    } else {
      m.out = Put(std::vector<float>(count, kUntouched));
    }
    run(args);
    return gated_ ? Floats(Get(m.gated, count)) : Get(m.out, count);
  }

  // Each expert's product alone, with the kernel of tiles.
  std::vector<float> Expected() {
    struct One {
      MatmulArgs args;
    };
    std::vector<float> all;
    for (int32_t e = 0; e < kExperts; ++e) {
      if (kRowsOf[e] == 0) continue;
      std::vector<uint16_t> own;
      for (int32_t i = 0; i < kRowsOf[e]; ++i) {
        const auto from = x_.begin() + SourceOf(e, i) * first_.padded_inputs;
        own.insert(own.end(), from, from + first_.padded_inputs);
      }
      One one;
      one.args.w = first_;
      one.args.w.tiles += e * first_.tile_bytes();
      if (first_.scales != nullptr) {
        one.args.w.scales += e * first_.output_tiles * kTileOutputs;
      }
      if (first_.bias != nullptr) {
        one.args.w.bias += e * first_.output_tiles * kTileOutputs;
      }
      one.args.swiglu_limit = swiglu_limit_;
      one.args.x = Put(own);
      one.args.x_stride = first_.padded_inputs;
      one.args.rows = kRowsOf[e];
      const std::vector<float> y =
          OutputsOf(&One::args, one, kRowsOf[e], width(), [&](const One& with) {
            RunMatmul(PlanMatmul(with.args, output(), MatmulKernel::kTile64),
                      with.args, output(), stream().handle());
          });
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  // All in one launch: what each turn gave, or nothing where it wrote to what
  // is no turn's. With `sorted`, x has a row for each place.
  std::vector<float> Products(const ExpertTiling& tiling, bool sorted,
                              InputOrder gated_order) {
    const int32_t padded = first_.padded_inputs;
    std::vector<RowTile> tiles;
    std::vector<int32_t> place_of;  // of turns
    std::vector<int32_t> place_rows(tiling.places, 0);
    int32_t next = 0;
    for (int32_t e = 0; e < kExperts; ++e) {
      for (int32_t i = 0; i < kRowsOf[e]; i += tiling.tile_rows) {
        if (tiling.staged) {
          next = static_cast<int32_t>(tiles.size()) * tiling.tile_rows;
        }
        const int32_t rows = std::min(tiling.tile_rows, kRowsOf[e] - i);
        tiles.push_back({e, next, rows});
        for (int32_t r = 0; r < rows; ++r) {
          place_rows[next] = SourceOf(e, i + r);
          place_of.push_back(next++);
        }
      }
    }
    EXPECT_LE(static_cast<int32_t>(tiles.size()), tiling.num_tiles);
    tiles.resize(tiling.num_tiles);
    ExpertMatmulArgs args;
    args.first.w = first_;
    args.first.x_stride = padded;
    args.first.rows = tiling.places;
    args.first.swiglu_limit = swiglu_limit_;
    args.tiles = Put(tiles);
    args.num_tiles = tiling.num_tiles;
    args.tile_rows = tiling.tile_rows;
    const int32_t* const rows = Put(place_rows);
    if (tiling.staged) {
      StageRowsArgs stage;
      stage.from = Put(x_);
      stage.inputs = padded;
      stage.place_rows = rows;
      stage.tiles = args.tiles;
      stage.tiling = tiling;
      stage.to = Take<uint16_t>(int64_t{tiling.places} * padded);
      RunStageRows(stage, stream().handle());
      args.first.x = stage.to;
      args.first.x_order = InputOrder::kStaged;
      args.first.gated_order = gated_order;
    } else if (sorted) {
      std::vector<uint16_t> all;
      for (const int32_t row : place_rows) {
        const auto from = x_.begin() + row * padded;
        all.insert(all.end(), from, from + padded);
      }
      args.first.x = Put(all);
    } else {
      args.first.x = Put(x_);
      args.x_rows = rows;
    }
    const int64_t stride =
        gated_order == InputOrder::kStaged ? width() : width() + 3;
    const std::vector<float> y =
        OutputsOf(&ExpertMatmulArgs::first, args, tiling.places + 1, stride,
                  [&](const ExpertMatmulArgs& with) {
                    RunExpertMatmul(tiling, with, output(), stream().handle());
                  });
    std::vector<float> turns;
    for (const int32_t place : place_of) {
      for (int32_t i = 0; i < width(); ++i) {
        turns.push_back(y[PlaceOfInput(gated_order, place, i, stride)]);
      }
    }
    const auto untouched =
        std::count(y.begin(), y.end(), Bf16ToFloat(FloatToBf16(kUntouched))) +
        (gated_ ? 0 : std::count(y.begin(), y.end(), kUntouched));
    if (untouched + turns.size() != y.size()) return {};
    return turns;
  }

  bool gated_ = false;
  float swiglu_limit_ = 0;
  DeviceMatrix first_;
  std::vector<uint16_t> x_;  // [kRows][padded inputs]
};

INSTANTIATE_TEST_SUITE_P(Formats, ExpertMatmulTest,
                         testing::ValuesIn(kWeightFormats),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST_P(ExpertMatmulTest, EachTurnHasItsExpertsProduct) {
  struct Case {
    bool gated, biased;
    int32_t outputs, inputs;
  };
  for (const auto& [gated, biased, outputs, inputs] :
       {Case{false, false, 90, 100}, Case{false, true, 140, 576},
        Case{true, false, 88, 576}, Case{true, true, 88, 128},
        Case{true, true, 256, 128}}) {
    SCOPED_TRACE(testing::Message() << outputs << " x " << inputs);
    Make(gated, biased, outputs, inputs);
    const std::vector<float> expected = Expected();
    for (const MatmulKernel kernel :
         {MatmulKernel::kStream8, MatmulKernel::kStream16,
          MatmulKernel::kTile64, MatmulKernel::kTile128}) {
      for (const bool sorted : {false, true}) {
        EXPECT_TRUE(SameBits(Products(TilingOf(kTurns, kExperts, kernel),
                                      sorted, InputOrder::kNatural),
                             expected))
            << "kernel " << static_cast<int>(kernel) << " " << sorted;
      }
    }
    if (!kernels().group || inputs != PaddedInputs(inputs)) continue;
    for (const int32_t rows : {kGroupFewRows, kGroupRows}) {
      if (rows != GroupRows(GetParam(), rows)) continue;
      for (const InputOrder order :
           {InputOrder::kNatural, InputOrder::kStaged}) {
        // Of what is an input of another product.
        const bool stages = gated && outputs / 2 % kSliceInputs == 0;
        if (order == InputOrder::kStaged && !stages) continue;
        const ExpertTiling tiling =
            TilingOf(kTurns, kExperts, MatmulKernel::kGroup, rows);
        EXPECT_TRUE(
            SameBits(Products(tiling, /*sorted=*/true, order), expected))
            << "groups, " << rows << " " << static_cast<int>(order);
      }
    }
  }
}

}  // namespace
}  // namespace baton::engine::cuda
