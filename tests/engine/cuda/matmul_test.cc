// Products on a device, with weights of each format: against sums in double of
// what the weights are when read one by one, and all kernels against each other
// to the bit.
#include "engine/cuda/matmul.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "engine/cuda/matmul_flow.h"
#include "engine/cuda/matmul_wide.h"
#include "engine/cuda/weight_format.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/host_tiles.h"

namespace baton::engine::cuda {
namespace {

struct Case {
  int32_t outputs, inputs, rows;
  bool bias;
};

constexpr uint16_t kNaN = 0x7fc0;

class MatmulTest : public DeviceTest,
                   public testing::WithParamInterface<WeightFormat> {
 protected:
  // Makes operands, and y in double.
  void Make(const Case& c, bool pairs) {
    case_ = c;
    const int32_t outputs = pairs ? 2 * c.outputs : c.outputs;
    const WeightFormat format = GetParam();
    std::vector<float> w =
        Floats(RandomBf16(int64_t{outputs} * c.inputs, 11, 0.5f));
    // Rows and slices of other sizes have other scales.
    for (int32_t o = 0; o < outputs; ++o) {
      for (int32_t i = 0; i < c.inputs; ++i) {
        w[int64_t{o} * c.inputs + i] *= 1.0f / (1 + (o + i / kSliceInputs) % 3);
      }
    }
    const std::vector<float> x =
        Floats(RandomBf16(int64_t{c.rows} * c.inputs, 12));
    padded_ = PaddedInputs(c.inputs);
    const int32_t tiles =
        pairs ? 2 * OutputTiles(c.outputs) : OutputTiles(c.outputs);
    WeightMatrix matrix;
    matrix.rows = outputs;
    matrix.columns = c.inputs;
    matrix.values.dtype = DType::kF32;
    matrix.values.shape = {outputs, c.inputs};
    matrix.values.bytes = absl::MakeSpan(
        reinterpret_cast<const std::byte*>(w.data()), w.size() * sizeof(float));
    std::vector<OutputRows> rows_of;
    std::vector<float> bias(int64_t{tiles} * kTileOutputs);
    const int32_t parts = pairs ? 2 : 1;
    for (int32_t first = 0; first < c.outputs; first += kTileOutputs) {
      const int32_t count = std::min(kTileOutputs, c.outputs - first);
      for (int32_t part = 0; part < parts; ++part) {
        rows_of.push_back({&matrix, part * c.outputs + first, count});
        rows_of.push_back({nullptr, 0, kTileOutputs - count});
      }
    }
    std::vector<std::byte> packed(tiles * TileBytes(format, padded_));
    std::vector<float> scales(int64_t{tiles} * kTileOutputs);
    PackTiles(format, rows_of, c.inputs, 0, tiles, packed.data(),
              scales.data());
    w_.resize(w.size());
    for (int32_t o = 0; o < outputs; ++o) {
      const int64_t place = PlaceOf(o, pairs);
      bias[place] = 0.25f * static_cast<float>(o % 7) - 0.5f;
      for (int32_t i = 0; i < c.inputs; ++i) {
        w_[int64_t{o} * c.inputs + i] =
            ReadWeight(format, packed.data(), scales.data(), place, i, padded_);
      }
    }
    // A row behind the last, and what pads rows beyond the padding, is NaN.
    stride_ = padded_ + 8;
    std::vector<uint16_t> rows((c.rows + 1) * stride_, kNaN);
    for (int32_t r = 0; r < c.rows; ++r) {
      for (int32_t i = 0; i < padded_; ++i) {
        rows[r * stride_ + i] =
            i < c.inputs ? FloatToBf16(x[int64_t{r} * c.inputs + i]) : 0;
      }
    }
    args_ = {};
    args_.w.tiles = Put(packed);
    args_.w.format = format;
    if (HasOutputScales(format)) args_.w.scales = Put(scales);
    args_.w.outputs = outputs;
    args_.w.inputs = c.inputs;
    args_.w.output_tiles = tiles;
    args_.w.padded_inputs = padded_;
    if (c.bias) args_.w.bias = Put(bias);
    x_ = Put(rows);
    x_staged_ = nullptr;
    if (c.inputs == padded_) {
      std::vector<uint16_t> staged(StagedRows(c.rows) * c.inputs, kNaN);
      for (int32_t r = 0; r < c.rows; ++r) {
        for (int32_t i = 0; i < c.inputs; ++i) {
          staged[PlaceOfInput(InputOrder::kStaged, r, i, c.inputs)] =
              rows[r * stride_ + i];
        }
      }
      x_staged_ = Put(staged);
    }
    args_.x = x_;
    args_.x_stride = stride_;
    args_.rows = c.rows;
    expected_.assign(int64_t{c.rows} * outputs, 0.0);
    for (int32_t r = 0; r < c.rows; ++r) {
      for (int32_t o = 0; o < outputs; ++o) {
        double sum = c.bias ? bias[PlaceOf(o, pairs)] : 0.0;
        for (int32_t i = 0; i < c.inputs; ++i) {
          sum += double{x[int64_t{r} * c.inputs + i]} *
                 w_[int64_t{o} * c.inputs + i];
        }
        expected_[int64_t{r} * outputs + o] = sum;
      }
    }
  }

  // Outputs of a pair: first those of the gate, then those of up.
  int64_t PlaceOf(int32_t output, bool pairs) const {
    if (!pairs) return output;
    const int32_t of_half = output % case_.outputs;
    return of_half / kTileOutputs * 2 * kTileOutputs + of_half % kTileOutputs +
           (output >= case_.outputs ? kTileOutputs : 0);
  }

  // The kernels that take so many rows.
  std::vector<MatmulKernel> Kernels() const {
    std::vector<MatmulKernel> kernels = {MatmulKernel::kTile64,
                                         MatmulKernel::kTile128};
    if (case_.rows <= 8) kernels.push_back(MatmulKernel::kStream8);
    if (case_.rows <= 16) kernels.push_back(MatmulKernel::kStream16);
    if (case_.rows <= 64 && this->kernels().wide) {
      kernels.push_back(MatmulKernel::kWide);
    }
    if (x_staged_ != nullptr && this->kernels().group) {
      kernels.push_back(MatmulKernel::kGroup);
    }
    if (x_staged_ != nullptr && case_.rows <= kFlowRows &&
        this->kernels().flow) {
      kernels.push_back(MatmulKernel::kFlow);
    }
    return kernels;
  }

  void Run(MatmulKernel kernel, MatmulOutput output) {
    const bool staged =
        kernel == MatmulKernel::kGroup || kernel == MatmulKernel::kFlow;
    args_.x = staged ? x_staged_ : x_;
    args_.x_order = staged ? InputOrder::kStaged : InputOrder::kNatural;
    RunMatmul(PlanMatmul(args_, output, kernel), args_, output,
              stream().handle());
  }

  std::vector<Case> Cases() const {
    std::vector<Case> cases = {
        {16, 64, 1, false},
        {40, 100, 5, true},
        {96, 576, 8, false},
        {33, 1100, 9, true},
        {130, 130, 17, true},
        {70, 192, 65, false},
        {40, 64, 130, true},
        {200, 1088, 20, true},
        {280, 192, 33, false},
        // Groups of warps with all their rows: every stage more than once.
        {24, 1088, 260, true}};
    if (large()) {
      cases.insert(cases.end(),
                   {{4096, 4096, 1, false}, {1024, 14336, 16, true}});
      // What takes the host long to sum is enough once.
      if (GetParam() == WeightFormat::kBf16) {
        cases.insert(cases.end(),
                     {{4096, 4096, 64, false}, {6144, 4096, 300, true}});
      } else {
        cases.push_back({1024, 4096, 300, true});
      }
    }
    return cases;
  }

  Case case_;
  int32_t padded_ = 0;
  int64_t stride_ = 0;
  std::vector<float> w_;
  std::vector<double> expected_;
  MatmulArgs args_;
  const uint16_t* x_ = nullptr;
  // Null where inputs are padded.
  const uint16_t* x_staged_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(Formats, MatmulTest, testing::ValuesIn(kWeightFormats),
                         [](const auto& param) {
                           return std::string(WeightFormatName(param.param));
                         });

TEST_P(MatmulTest, StoresTheProductAndNothingElse) {
  for (const Case& c : Cases()) {
    Make(c, /*pairs=*/false);
    std::vector<float> first;
    for (const MatmulKernel kernel : Kernels()) {
      // Two columns and a row too many: they stay as they are.
      const int64_t stride = c.outputs + 2;
      float* const out = Take<float>((c.rows + 1) * stride);
      args_.out = out;
      args_.out_stride = stride;
      Run(kernel, MatmulOutput::kStore);
      const std::vector<float> y = Get(out, (c.rows + 1) * stride);
      double worst = 0;
      for (int32_t r = 0; r <= c.rows; ++r) {
        for (int64_t o = 0; o < stride; ++o) {
          const float value = y[r * stride + o];
          if (r == c.rows || o >= c.outputs) {
            ASSERT_TRUE(std::isnan(value)) << r << " " << o;
          } else {
            const double expected = expected_[r * c.outputs + o];
            ASSERT_FALSE(std::isnan(value)) << r << " " << o;
            worst = std::max(worst, std::abs(value - expected));
          }
        }
      }
      // Sums of c.inputs products of about 0.5, in float32.
      EXPECT_LT(worst, 1e-5 * c.inputs)
          << c.outputs << " x " << c.inputs << ", " << c.rows << " rows";
      if (first.empty()) first = y;
      EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)),
                0)
          << "kernel " << static_cast<int>(kernel) << ", " << c.rows;
    }
  }
}

TEST_P(MatmulTest, AddsToWhatIsThere) {
  for (const Case& c : Cases()) {
    Make(c, /*pairs=*/false);
    std::vector<float> before(int64_t{c.rows} * c.outputs);
    for (size_t i = 0; i < before.size(); ++i) {
      before[i] = static_cast<float>(i % 13) - 6.0f;
    }
    std::vector<float> first;
    for (const MatmulKernel kernel : Kernels()) {
      args_.out = Put(before);
      args_.out_stride = c.outputs;
      Run(kernel, MatmulOutput::kAdd);
      const std::vector<float> y =
          Get(args_.out, static_cast<int64_t>(before.size()));
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], before[i] + expected_[i], 1e-5 * c.inputs) << i;
      }
      if (first.empty()) first = y;
      EXPECT_TRUE(SameBits(first, y)) << static_cast<int>(kernel);
    }
  }
}

TEST_P(MatmulTest, GatedByGateAndUp) {
  // In turns, so that each kernel has both.
  bool gelu = true;
  for (const Case& c : Cases()) {
    Make(c, /*pairs=*/true);
    args_.gelu = gelu = !gelu;
    std::vector<uint16_t> first;
    for (const MatmulKernel kernel : Kernels()) {
      const int64_t stride = c.outputs + 3;
      const int64_t count = (c.rows + 1) * stride;
      args_.gated = Take<uint16_t>(count);
      args_.out_stride = stride;
      Run(kernel, MatmulOutput::kSwiglu);
      const std::vector<uint16_t> y = Get(args_.gated, count);
      for (int32_t r = 0; r <= c.rows; ++r) {
        for (int64_t o = 0; o < stride; ++o) {
          const uint16_t bits = y[r * stride + o];
          if (r == c.rows || o >= c.outputs) {
            ASSERT_EQ(bits, 0xffff) << r << " " << o;
            continue;
          }
          const double gate = expected_[r * 2 * c.outputs + o];
          const double up = expected_[r * 2 * c.outputs + c.outputs + o];
          const double steepness =
              gelu ? 1.5957691216057308 * (1 + 0.044715 * gate * gate) : 1.0;
          const double expected = gate / (1 + std::exp(-steepness * gate)) * up;
          ASSERT_NEAR(Bf16ToFloat(bits), expected,
                      1e-4 * c.inputs + std::abs(expected) / 128)
              << r << " " << o;
        }
      }
      if (first.empty()) first = y;
      EXPECT_EQ(first, y) << static_cast<int>(kernel);
    }
  }
}

// Blocks of a cluster share chunks out as they may: one has all, each has two
// or one, or none is left for it.
TEST_P(MatmulTest, ClustersOfAnySizeGiveTheSameSums) {
  if (!kernels().wide) GTEST_SKIP() << "the device has no clusters";
  for (const int32_t rows : {20, 40}) {
    const Case c = {40, 2112, rows, true};
    Make(c, /*pairs=*/false);
    const int32_t chunks = Chunks(padded_);
    ASSERT_EQ(chunks, 5);
    const int64_t count = int64_t{rows} * c.outputs;
    args_.out_stride = c.outputs;
    const std::vector<float> before(count, 0.75f);
    for (const MatmulOutput output :
         {MatmulOutput::kStore, MatmulOutput::kAdd}) {
      args_.out = Put(before);
      Run(MatmulKernel::kTile64, output);
      const std::vector<float> expected = Get(args_.out, count);
      for (const auto& [blocks, tiles] :
           {std::pair(1, 2), std::pair(4, 2), std::pair(8, 2), std::pair(1, 1),
            std::pair(4, 1)}) {
        MatmulPlan plan = PlanMatmul(args_, output, MatmulKernel::kWide);
        ASSERT_EQ(plan.shape.cluster, 4u);
        ASSERT_EQ(plan.shape.y, 1u);
        plan.warp_tiles = tiles;
        plan.shape.x = plan.shape.cluster = blocks;
        plan.shape.shared_bytes =
            WideSharedBytes(rows <= kWideFewRows ? kWideFewRows : kWideRows,
                            chunks, blocks, tiles);
        args_.out = Put(before);
        RunMatmul(plan, args_, output, stream().handle());
        EXPECT_TRUE(SameBits(Get(args_.out, count), expected))
            << rows << " rows, " << blocks << " blocks, " << tiles << " tiles";
      }
    }
  }
}

// The same of blocks that bring their weights, with as many tiles as warps, or
// fewer, and of clusters; whose last block has outputs that are not there.
TEST_P(MatmulTest, FlowsOfAnySizeGiveTheSameSums) {
  if (!kernels().flow) GTEST_SKIP() << "the device has no such cores";
  for (const int32_t rows : {17, 64}) {
    const Case c = {200, 2304, rows, true};
    Make(c, /*pairs=*/false);
    ASSERT_EQ(Chunks(padded_), 5);
    const int64_t count = int64_t{rows} * c.outputs;
    args_.out_stride = c.outputs;
    const std::vector<float> before(count, 0.75f);
    for (const MatmulOutput output :
         {MatmulOutput::kStore, MatmulOutput::kAdd}) {
      args_.out = Put(before);
      Run(MatmulKernel::kTile64, output);
      const std::vector<float> expected = Get(args_.out, count);
      args_.x = x_staged_;
      args_.x_order = InputOrder::kStaged;
      const auto run = [&](int32_t tiles, int32_t warps, uint32_t blocks) {
        MatmulPlan plan = PlanMatmul(args_, output, MatmulKernel::kFlow);
        plan.block_tiles = tiles;
        plan.shape.x = plan.shape.cluster = blocks;
        plan.shape.y =
            static_cast<uint32_t>((args_.w.output_tiles + tiles - 1) / tiles);
        plan.shape.threads = static_cast<uint32_t>(32 * warps);
        plan.shape.shared_bytes = FlowSharedBytes(args_.w.format, warps);
        args_.out = Put(before);
        RunMatmul(plan, args_, output, stream().handle());
        EXPECT_TRUE(SameBits(Get(args_.out, count), expected))
            << rows << " rows, " << tiles << " tiles, " << blocks << " blocks";
      };
      run(8, kFlowFewWarps, 1);
      run(8, kFlowFewWarps, 4);
      run(6, kFlowFewWarps, 1);
      run(10, kFlowWarps, 1);
      run(16, kFlowWarps, 1);
    }
  }
}

// All that a format can store, one weight at a time: no rounding but that of
// the scale.
TEST_P(MatmulTest, EveryStoredValueIsWhatItIsReadAs) {
  const WeightFormat format = GetParam();
  constexpr int32_t kInputs = 2 * kSliceInputs;
  const Case c = {16, kInputs, kInputs, false};
  Make(c, /*pairs=*/false);
  std::vector<std::byte> tiles(TileBytes(format, kInputs));
  for (size_t i = 0; i < tiles.size(); ++i) {
    // No NaN of e4m3, nor bfloat16 that are not finite or subnormal.
    const bool exponent = format == WeightFormat::kBf16 && i % 2 == 1;
    const auto byte = static_cast<uint8_t>(exponent ? 1 + i / 2 % 61 : i);
    tiles[i] = std::byte{(byte & 0x7f) == 0x7f ? uint8_t{0} : byte};
  }
  std::vector<float> scales(kTileOutputs);
  for (int32_t o = 0; o < kTileOutputs; ++o) {
    scales[o] = 0.37f / static_cast<float>(1 + o);
    if (!HasSliceGrids(format)) continue;
    for (int32_t i = 0; i < kInputs; i += kSliceInputs) {
      // Each zero, and scales of all sizes.
      const auto code = static_cast<uint16_t>(
          i == 0 ? 31 << 11 | o << 7 | o : 2 * o << 11 | 127 << 4 | (15 - o));
      std::memcpy(&tiles[PlaceOfSliceGrid(format, o, i, kInputs)], &code, 2);
    }
  }
  // Row r picks input r.
  std::vector<uint16_t> x(c.rows * kInputs);
  for (int32_t r = 0; r < c.rows; ++r) x[r * kInputs + r] = FloatToBf16(1.0f);
  args_.w.tiles = Put(tiles);
  if (HasOutputScales(format)) args_.w.scales = Put(scales);
  args_.x = Put(x);
  args_.x_stride = kInputs;
  args_.out = Take<float>(c.rows * c.outputs);
  args_.out_stride = c.outputs;
  RunMatmul(args_, MatmulOutput::kStore, kernels(), stream().handle());
  const std::vector<float> y = Get(args_.out, c.rows * c.outputs);
  std::set<float> stored;
  for (int32_t r = 0; r < c.rows; ++r) {
    for (int32_t o = 0; o < c.outputs; ++o) {
      const float weight =
          ReadWeight(format, tiles.data(), scales.data(), o, r, kInputs);
      ASSERT_EQ(y[r * c.outputs + o], weight) << r << " " << o;
      stored.insert(HasOutputScales(format) ? weight / scales[o] : weight);
    }
  }
  EXPECT_GE(stored.size(), format == WeightFormat::kInt4 ? 16u : 250u);
}

// A row's result is the same at every place of every number of rows.
TEST_P(MatmulTest, RowsDoNotDependOnEachOther) {
  const Case c = {48, 1100, 70, false};
  Make(c, /*pairs=*/false);
  std::vector<float> all;
  for (const int32_t rows : {70, 64, 33, 16, 9, 8, 3, 1}) {
    args_.rows = rows;
    args_.out = Take<float>(int64_t{rows} * c.outputs);
    args_.out_stride = c.outputs;
    RunMatmul(args_, MatmulOutput::kStore, kernels(), stream().handle());
    const std::vector<float> y = Get(args_.out, int64_t{rows} * c.outputs);
    if (all.empty()) all = y;
    EXPECT_EQ(std::memcmp(all.data(), y.data(), y.size() * sizeof(float)), 0)
        << rows;
  }
}

}  // namespace
}  // namespace baton::engine::cuda
