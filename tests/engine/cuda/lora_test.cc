// LoRA adapters on a device: the kernels against the host, and engines against
// the CPU backend and against themselves.
#include "engine/cuda/lora.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/cpu/cpu_engine.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/step_layout.h"
#include "engine/float_convert.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/host_tiles.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cuda::lora_test {
namespace {

using scheduling::kNoAdapter;
using scheduling::StepPlan;
using scheduling::StepResult;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kTolerance = 1e-2;

TEST(LoraGroupsTest, RowsOfAnAdapterAreTogether) {
  const LoraGroups groups =
      GroupByAdapter({1, kNoAdapter, 0, 1, 1, kNoAdapter, 0});
  EXPECT_THAT(groups.list, ElementsAre(2, 6, 0, 3, 4));
  ASSERT_EQ(groups.tiles.size(), 2u);
  EXPECT_EQ(groups.tiles[0].adapter, 0);
  EXPECT_EQ(groups.tiles[0].rows, 2);
  EXPECT_EQ(groups.tiles[1].adapter, 1);
  EXPECT_EQ(groups.tiles[1].first, 2);
  EXPECT_EQ(groups.tiles[1].rows, 3);
  const LoraGroups many = GroupByAdapter(std::vector<int32_t>(19, 4));
  ASSERT_EQ(many.tiles.size(), 3u);
  EXPECT_EQ(many.tiles[2].first, 16);
  EXPECT_EQ(many.tiles[2].rows, 3);
  EXPECT_TRUE(GroupByAdapter({kNoAdapter}).tiles.empty());
}

class LoraKernelTest : public DeviceTest {
 protected:
  LoraRows PutRows(const std::vector<int32_t>& adapters) {
    LoraGroups groups = GroupByAdapter(adapters);
    // One that is not there, as in graphs.
    groups.tiles.push_back({});
    LoraRows rows;
    rows.num_tiles = static_cast<int32_t>(groups.tiles.size());
    rows.tiles = Put(groups.tiles);
    rows.list = Put(groups.list);
    return rows;
  }
};

// What 32 lanes add up, each every 32nd pair of inputs.
float SumOf(const float* x, const float* a, int32_t inputs) {
  std::vector<float> lanes(32);
  for (int32_t pair = 0; pair < inputs / 2; ++pair) {
    float& sum = lanes[pair % 32];
    sum = std::fma(x[2 * pair], a[2 * pair], sum);
    sum = std::fma(x[2 * pair + 1], a[2 * pair + 1], sum);
  }
  for (int32_t half = 16; half > 0; half /= 2) {
    const std::vector<float> before = lanes;
    for (int32_t lane = 0; lane < 32; ++lane) {
      lanes[lane] = before[lane] + before[lane ^ half];
    }
  }
  return lanes[0];
}

TEST_F(LoraKernelTest, AreThoseOfTheHost) {
  constexpr int32_t kRank = 16;
  constexpr int32_t kInputs = 192;
  constexpr int32_t kRows = 30;
  constexpr int32_t kAdapters = 3;
  const std::vector<int32_t> outputs = {300, 40, 40};
  std::vector<int32_t> adapters(kRows);
  for (int32_t i = 0; i < kRows; ++i) adapters[i] = i * 5 % (kAdapters + 1) - 1;
  const std::vector<uint16_t> x = RandomBf16(int64_t{kRows} * kInputs, 1);
  std::vector<LoraEntry> entries(kAdapters);
  std::vector<std::vector<uint16_t>> a(kAdapters * 3), b(kAdapters * 3);
  for (int32_t i = 0; i < kAdapters * 3; ++i) {
    if (i == 4) continue;  // adds nothing
    a[i] = RandomBf16(int64_t{kRank} * kInputs, 10 + i, 0.1f);
    b[i] = RandomBf16(int64_t{outputs[i % 3]} * kRank, 30 + i);
    entries[i / 3].parts[i % 3] = {Put(a[i]), Put(b[i]),
                                   0.5f + 0.3f * static_cast<float>(i)};
  }
  const LoraRows rows = PutRows(adapters);
  for (const InputOrder order : {InputOrder::kNatural, InputOrder::kStaged}) {
    std::vector<uint16_t> placed(StagedRows(kRows) * kInputs);
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t k = 0; k < kInputs; ++k) {
        placed[PlaceOfInput(order, row, k, kInputs)] = x[row * kInputs + k];
      }
    }
    LoraNarrowArgs narrow;
    narrow.rows = rows;
    narrow.entries = Put(entries);
    narrow.parts = 3;
    narrow.rank = kRank;
    narrow.padded_inputs = kInputs;
    narrow.x = Put(placed);
    narrow.x_stride = kInputs;
    narrow.x_order = order;
    const int64_t count = int64_t{kRows} * kLoraParts * kRank;
    narrow.narrow = Put(std::vector<uint16_t>(count, 0));
    RunLoraNarrow(narrow, stream().handle());
    const std::vector<uint16_t> small = Get(narrow.narrow, count);
    const std::vector<float> all_x = Floats(x);
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t part = 0; part < 3; ++part) {
        const int32_t i = adapters[row] * 3 + part;
        for (int32_t r = 0; r < kRank; ++r) {
          uint16_t expected = 0;
          if (adapters[row] >= 0 && !a[i].empty()) {
            const std::vector<float> weights = Floats(a[i]);
            expected =
                FloatToBf16(SumOf(all_x.data() + row * kInputs,
                                  weights.data() + r * kInputs, kInputs) *
                            entries[adapters[row]].parts[part].scale);
          }
          ASSERT_EQ(small[(row * kLoraParts + part) * kRank + r], expected)
              << row << " " << part << " " << r;
        }
      }
    }

    // Of some rows alone.
    constexpr int32_t kFirst = 4;
    constexpr int32_t kEnd = 27;
    constexpr int32_t kStride = 400;
    const std::vector<float> before =
        Floats(RandomBf16(int64_t{kEnd - kFirst} * kStride, 2));
    LoraWideArgs wide;
    wide.rows = rows;
    wide.entries = narrow.entries;
    wide.parts = 3;
    wide.rank = kRank;
    wide.narrow = narrow.narrow;
    for (int32_t part = 0; part < 3; ++part) {
      wide.outputs[part] = outputs[part];
      wide.columns[part] =
          part == 0 ? 0 : wide.columns[part - 1] + outputs[part - 1];
    }
    wide.first_row = kFirst;
    wide.end_row = kEnd;
    wide.out = Put(before);
    wide.out_stride = kStride;
    RunLoraWide(wide, stream().handle());
    const std::vector<float> out =
        Get(wide.out, static_cast<int64_t>(before.size()));
    for (int32_t row = kFirst; row < kEnd; ++row) {
      std::vector<float> expected(
          before.begin() + (row - kFirst) * kStride,
          before.begin() + (row - kFirst + 1) * kStride);
      for (int32_t part = 0; part < 3 && adapters[row] >= 0; ++part) {
        const std::vector<float> weights = Floats(b[adapters[row] * 3 + part]);
        if (weights.empty()) continue;
        for (int32_t output = 0; output < outputs[part]; ++output) {
          float sum = 0;
          for (int32_t r = 0; r < kRank; ++r) {
            sum = std::fma(
                Bf16ToFloat(small[(row * kLoraParts + part) * kRank + r]),
                weights[output * kRank + r], sum);
          }
          expected[wide.columns[part] + output] += sum;
        }
      }
      for (int32_t i = 0; i < kStride; ++i) {
        ASSERT_EQ(out[(row - kFirst) * kStride + i], expected[i])
            << row << " " << i;
      }
    }
  }
}

// The same of products with gate and up, whose tiles lie in turns: with nothing
// added, what the product gives by itself.
TEST_F(LoraKernelTest, SwigluIsThatOfTheProduct) {
  constexpr int32_t kElements = 40;  // of each; padded
  constexpr int32_t kTiles = 6;
  constexpr int32_t kStride = kTiles * kTileOutputs;
  constexpr int32_t kInputs = 64;
  constexpr int32_t kRows = 5;
  DeviceMatrix w;
  w.outputs = 2 * kElements;
  w.inputs = w.padded_inputs = kInputs;
  w.output_tiles = kTiles;
  const std::vector<uint16_t> weights =
      RandomBf16(int64_t{kStride} * kInputs, 3);
  std::vector<std::byte> tiles(w.tile_bytes());
  for (int32_t output = 0; output < kStride; ++output) {
    for (int32_t k = 0; k < kInputs; ++k) {
      const WeightPlace place =
          PlaceOfWeight(w.format, output, k, w.padded_inputs);
      std::memcpy(tiles.data() + place.byte, &weights[output * kInputs + k], 2);
    }
  }
  w.tiles = Put(tiles);
  MatmulArgs product;
  product.w = w;
  product.x = Put(RandomBf16(int64_t{kRows} * kInputs, 4, 0.3f));
  product.x_stride = kInputs;
  product.rows = kRows;
  product.gated = Take<uint16_t>(kRows * kElements);
  product.out_stride = kElements;
  std::vector<uint16_t> expected[2];  // as others, and with GELU
  for (const bool gelu : {false, true}) {
    product.gelu = gelu;
    RunMatmul(product, MatmulOutput::kSwiglu, kernels(), stream().handle());
    expected[gelu] = Get(product.gated, kRows * kElements);
  }

  product.w.outputs = kStride;
  product.gated = nullptr;
  product.out = Take<float>(kRows * kStride);
  product.out_stride = kStride;
  RunMatmul(product, MatmulOutput::kStore, kernels(), stream().handle());
  SwigluArgs swiglu;
  swiglu.from = product.out;
  swiglu.from_stride = kStride;
  swiglu.rows = kRows;
  swiglu.elements = kElements;
  swiglu.to = Take<uint16_t>((kRows + 1) * kElements);
  swiglu.to_stride = kElements;
  swiglu.first_row = 1;
  for (const bool gelu : {false, true}) {
    swiglu.gelu = gelu;
    RunSwiglu(swiglu, stream().handle());
    const std::vector<uint16_t> gated =
        Get(swiglu.to, (kRows + 1) * int64_t{kElements});
    EXPECT_EQ(std::vector<uint16_t>(gated.begin() + kElements, gated.end()),
              expected[gelu]);
    EXPECT_EQ(gated[0], 0xffff) << "wrote outside";
  }
  EXPECT_NE(expected[0], expected[1]);

  // One that adds to `up` alone.
  const std::vector<uint16_t> b = RandomBf16(kElements * kLoraRankUnit, 5);
  std::vector<LoraEntry> entries(1);
  entries[0].parts[1] = {Put(b), Put(b), 1};
  LoraWideArgs wide;
  wide.rows = PutRows({kNoAdapter, 0, kNoAdapter});
  wide.entries = Put(entries);
  wide.parts = 2;
  wide.rank = kLoraRankUnit;
  const std::vector<uint16_t> narrow =
      RandomBf16(3 * kLoraParts * kLoraRankUnit, 6);
  wide.narrow = Put(narrow);
  wide.outputs[0] = wide.outputs[1] = kElements;
  wide.in_turns = true;
  wide.end_row = 3;
  wide.out = Put(std::vector<float>(3 * kStride, 0.0f));
  wide.out_stride = kStride;
  RunLoraWide(wide, stream().handle());
  const std::vector<float> out = Get(wide.out, 3 * kStride);
  for (int32_t i = 0; i < 3 * kStride; ++i) {
    const int32_t column = i % kStride;
    const int32_t tile = column / kTileOutputs;
    const int32_t element = tile / 2 * kTileOutputs + column % kTileOutputs;
    float sum = 0;
    for (int32_t r = 0; r < kLoraRankUnit && i / kStride == 1; ++r) {
      if (tile % 2 == 0 || element >= kElements) continue;
      sum = std::fma(Bf16ToFloat(narrow[(kLoraParts + 1) * kLoraRankUnit + r]),
                     Bf16ToFloat(b[element * kLoraRankUnit + r]), sum);
    }
    ASSERT_EQ(out[i], sum) << i;
  }
}

class LoraEngineTest : public DeviceTest,
                       public testing::WithParamInterface<std::string> {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (IsSkipped()) return;
    if (emulated() && GetParam() == "wide") GTEST_SKIP() << "for GPUs";
    const std::vector<std::pair<std::string, test::TinyAdapterOptions>>
        adapters = {
            {"all", {.seed = 5, .rank = 11, .alpha = 20}},
            {"few", {.seed = 6, .rank = 3, .modules = {"q_proj", "v_proj"}}},
            {"nothing", {.seed = 7, .rank = 8, .strength = 0}}};
    for (const auto& [name, options] : adapters) {
      const std::string dir = scratch_.path() + "/" + name;
      ASSERT_TRUE(
          test::WriteTinyAdapter(dir, ModelDirOf(GetParam()), options).ok());
      sources_.push_back({name, dir});
    }
  }

  EngineOptions Options(const std::string& weights = "auto") const {
    EngineOptions options = OptionsFor(ModelDirOf(GetParam()));
    options.weights = weights;
    options.adapters = sources_;
    return options;
  }

  static std::vector<float> RunAlone(Engine& engine, int32_t adapter,
                                     const std::vector<TokenId>& tokens) {
    return RunWhole(engine, tokens, BlockRange(0, 19), adapter);
  }

  test::ScratchDir scratch_;
  std::vector<AdapterSource> sources_;
};

// Models with latent attention have none.
std::vector<std::string> AdaptedModelNames() {
  std::vector<std::string> names = ModelNames();
  names.erase(std::remove(names.begin(), names.end(), "latent"), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Models, LoraEngineTest,
                         testing::ValuesIn(AdaptedModelNames()),
                         [](const auto& param) { return param.param; });

TEST_P(LoraEngineTest, LogitsAreThoseOfTheCpuBackend) {
  const auto cuda = MakeCuda(Options());
  const auto cpu = cpu::CpuEngine::Create(Options());
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  ASSERT_EQ(cuda->adapters().size(), 3u);
  EXPECT_EQ(cuda->adapters()[0].identity, (*cpu)->adapters()[0].identity);
  const std::vector<TokenId> tokens = Prompt(33, 4);
  const std::vector<float> base = RunAlone(*cuda, kNoAdapter, tokens);
  for (const int32_t adapter : {0, 1}) {
    const std::vector<float> logits = RunAlone(*cuda, adapter, tokens);
    EXPECT_LT(RelativeError(logits, RunAlone(**cpu, adapter, tokens)),
              kTolerance)
        << adapter;
    EXPECT_GT(RelativeError(logits, base), 3 * kTolerance) << adapter;
  }
  // What adds zeros, and an engine without any.
  EXPECT_TRUE(SameBits(RunAlone(*cuda, 2, tokens), base));
  EXPECT_TRUE(SameBits(RunWhole(*MakeCuda(ModelDirOf(GetParam()), SmallPass()),
                                tokens, BlockRange(0, 19)),
                       base));
}

// Of all adapters and of none, prompts and single tokens; some of gate and up
// at a time; then steps that are graphs.
// Between steps, with the logits that they have in an engine that had them from
// the start, to the bit, whatever rank there is room for.
TEST_P(LoraEngineTest, ComeAndGo) {
  const std::vector<TokenId> tokens = Prompt(20, 4);
  std::vector<std::vector<float>> expected;
  {
    const auto engine = MakeCuda(Options());
    for (int32_t adapter = 0; adapter < 3; ++adapter) {
      expected.push_back(RunAlone(*engine, adapter, tokens));
    }
  }
  EngineOptions options = Options();
  options.adapters = {sources_[1]};
  options.adapters_may_come = true;
  options.adapter_rank = 21;
  // Each of them has its part.
  if (OpenDevice(1).ok() && GetParam() != "odd") options.tensor_parallel = 2;
  UseDevice(0);
  const auto engine = MakeCuda(options);
  const auto add = [&](size_t i) {
    auto prepared = engine->PrepareAdapter(sources_[i]);
    CHECK(prepared.ok()) << prepared.status();
    return engine->AddAdapter(*std::move(prepared)).value();
  };
  EXPECT_TRUE(SameBits(RunAlone(*engine, 0, tokens), expected[1]));
  EXPECT_EQ(add(0), 1);
  EXPECT_EQ(add(2), 2);
  EXPECT_EQ(engine->adapters()[1].name, "all");
  EXPECT_TRUE(SameBits(RunAlone(*engine, 1, tokens), expected[0]));
  EXPECT_TRUE(SameBits(RunAlone(*engine, 2, tokens), expected[2]));
  engine->RemoveAdapter(0);
  EXPECT_TRUE(engine->adapters()[0].name.empty());
  EXPECT_TRUE(SameBits(RunAlone(*engine, 1, tokens), expected[0]));
  EXPECT_EQ(add(0), 0);
  EXPECT_TRUE(SameBits(RunAlone(*engine, 0, tokens), expected[0]));
  engine->RemoveAdapter(1);
  EXPECT_TRUE(SameBits(RunAlone(*engine, 0, tokens), expected[0]));
  // Of a larger rank than there is room for; and where none may come.
  options.adapter_rank = 8;
  const auto narrow = MakeCuda(options);
  EXPECT_THAT(narrow->PrepareAdapter(sources_[0]).status().message(),
              HasSubstr("adapter all: its rank is 11, there is room for 8"));
  EXPECT_EQ(MakeCuda(Options())->PrepareAdapter(sources_[0]).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST_P(LoraEngineTest, ABatchOfAllGivesTheSameLogits) {
  constexpr int kSequences = 9;
  const auto adapter_of = [](int i) { return i * 7 % 4 - 1; };
  ForwardPassOptions pass = SmallPass();
  pass.stored_rows = 128;
  const auto engine = MakeCuda(Options(), pass);
  std::vector<std::vector<TokenId>> tokens;
  std::vector<std::vector<BlockId>> blocks;
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < kSequences; ++i) {
    tokens.push_back(Prompt(i == 8 ? 150 : 2 + 7 * i, 40 + i));
    alone.push_back(RunAlone(*engine, adapter_of(i), tokens[i]));
    blocks.push_back(BlockRange(i == 8 ? 32 : 4 * i, i == 8 ? 10 : 4));
  }
  StepPlan first, second, single;
  for (int i = 0; i < kSequences; ++i) {
    const auto size = static_cast<int32_t>(tokens[i].size());
    const int32_t cut = i % 3 == 0 ? 0 : i % 3 == 1 ? size / 2 : size - 1;
    if (cut > 0) {
      first.sequences.push_back(Part(i, tokens[i], 0, cut, blocks[i]));
      first.sequences.back().adapter = adapter_of(i);
    }
    second.sequences.push_back(Part(i, tokens[i], cut, size, blocks[i]));
    second.sequences.back().adapter = adapter_of(i);
    single.sequences.push_back(Part(i, tokens[i], size - 1, size, blocks[i]));
    single.sequences.back().adapter = adapter_of(i);
  }
  engine->Execute(first, NoHook);
  const auto check = [&](const StepResult& result, const char* what) {
    ASSERT_EQ(result.sampled.size(), static_cast<size_t>(kSequences));
    for (int i = 0; i < kSequences; ++i) {
      EXPECT_EQ(result.sampled[i].sequence, SequenceId(i));
      EXPECT_TRUE(SameBits(result.sampled[i].logits, alone[i]))
          << what << " " << i;
    }
  };
  check(engine->Execute(second, NoHook), "mixed");
  // The third is a graph.
  for (int i = 0; i < 3; ++i) check(engine->Execute(single, NoHook), "single");
  // Others without adapters have a graph of their own.
  for (scheduling::PlannedSequence& part : single.sequences) {
    part.adapter = kNoAdapter;
  }
  for (int i = 0; i < 3; ++i) engine->Execute(single, NoHook);
}

TEST_P(LoraEngineTest, SeveralDevicesGiveTheSameLogits) {
  if (!OpenDevice(1).ok()) GTEST_SKIP() << "there is one device";
  UseDevice(0);
  if (GetParam() == "odd") GTEST_SKIP() << "cannot be shared";
  EngineOptions options = Options();
  const auto one = MakeCuda(options);
  options.tensor_parallel = 2;
  const auto two = MakeCuda(options);
  for (const int32_t length : {1, 40}) {
    const std::vector<TokenId> tokens = Prompt(length, 8);
    for (const int32_t adapter : {0, 1, kNoAdapter}) {
      EXPECT_TRUE(SameBits(RunAlone(*two, adapter, tokens),
                           RunAlone(*one, adapter, tokens)))
          << length << " " << adapter;
    }
  }
}

TEST_P(LoraEngineTest, WeightsInOtherFormatsHaveThemToo) {
  const std::vector<TokenId> tokens = Prompt(20, 9);
  for (const char* weights : {"int8", "int4", "fp8"}) {
    const auto cuda = MakeCuda(Options(weights));
    const std::vector<float> base = RunAlone(*cuda, kNoAdapter, tokens);
    EXPECT_TRUE(SameBits(RunAlone(*cuda, 2, tokens), base)) << weights;
    EXPECT_GT(RelativeError(RunAlone(*cuda, 0, tokens), base), kTolerance)
        << weights;
  }
}

}  // namespace
}  // namespace baton::engine::cuda::lora_test
