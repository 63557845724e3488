// KV in 8 bits on a device: the whole engine against the CPU backend and
// against itself.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/float_convert.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"
#include "tests/engine/cuda/fp8_pages.h"

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

// KV of both is int8 of floats that are nearly the same: here and there one
// rounds to the next integer. The CPU also rounds each key and value to
// bfloat16 where it reads them.
constexpr double kInt8Tolerance = 2e-2;
// Against KV in bfloat16, which the CPU backend has instead: what fp8 changes.
constexpr double kFp8Tolerance = 4e-2;
// Against KV that is what fp8 stands for, rounded to bfloat16.
constexpr double kSameKvTolerance = 1e-2;

class CudaKv8Test : public DeviceTest,
                    public testing::WithParamInterface<KvDtype> {
 protected:
  static EngineOptions Options(const std::string& model,
                               int32_t block_size = 16) {
    EngineOptions options = OptionsFor(ModelDirOf(model), block_size);
    options.kv_dtype = KvDtypeName(GetParam());
    return options;
  }
  static std::unique_ptr<CudaEngine> Make(
      const std::string& model,
      const ForwardPassOptions& pass_options = SmallPass(),
      int32_t block_size = 16) {
    auto engine = CudaEngine::Create(Options(model, block_size), pass_options);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  // With KV in int8 like the device's, or in bfloat16 beside fp8.
  static std::unique_ptr<Engine> MakeCpuBeside(const std::string& model) {
    EngineOptions options = Options(model);
    if (GetParam() == KvDtype::kFp8) {
      options.kv_dtype = KvDtypeName(KvDtype::kBf16);
    }
    auto engine = cpu::CpuEngine::Create(options);
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }

  // Gives the device a sequence's KV that the CPU backend wrote: the same pages
  // when they hold int8; else the CPU's values rounded to fp8, and the CPU gets
  // what these stand for.
  static void GiveKv(Engine& cpu, CudaEngine& cuda,
                     const std::vector<BlockId>& blocks, int32_t length) {
    const KvLayout& layout = cuda.kv_layout();
    const DeviceKv kv = cuda.device_kv(0);
    std::vector<std::byte> memory(layout.total_bytes());
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      if (GetParam() == KvDtype::kFp8) {
        RoundLayer(cpu, layout, layer, blocks, length, memory.data());
      }
      for (const BlockId block : blocks) {
        std::byte* const page = memory.data() + layout.PageOffset(layer, block);
        if (GetParam() == KvDtype::kInt8) {
          std::memcpy(
              page,
              cpu.kv_memory().data() + cpu.kv_layout().PageOffset(layer, block),
              layout.page_bytes());
        }
        kv.compute->CopyToDevice(kv.memory + layout.PageOffset(layer, block),
                                 page, layout.page_bytes());
      }
    }
    kv.compute->Wait();
  }

 private:
  static void RoundLayer(Engine& cpu, const KvLayout& layout, int32_t layer,
                         const std::vector<BlockId>& blocks, int32_t length,
                         std::byte* memory) {
    const KvLayout& from = cpu.kv_layout();
    std::vector<float> row(layout.head_dim);
    for (int32_t position = 0; position < length; ++position) {
      for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
        for (const KvPart part : {KvPart::kKeys, KvPart::kValues}) {
          if (part == KvPart::kValues && layout.shares_values()) continue;
          auto* const bf16 = reinterpret_cast<uint16_t*>(
              PartAt(from, cpu.kv_memory().data(), layer, blocks, position,
                     head, part));
          for (int32_t i = 0; i < layout.head_dim; ++i) {
            row[i] = Bf16ToFloat(bf16[ElementPlace(from, position, i, part)]);
          }
          const Fp8Row rounded = RoundToFp8(row);
          WriteFp8(layout, memory, layer, blocks, position, head, part,
                   rounded);
          const std::vector<float> values = rounded.Values();
          for (int32_t i = 0; i < layout.head_dim; ++i) {
            bf16[ElementPlace(from, position, i, part)] =
                FloatToBf16(values[i]);
          }
        }
      }
    }
  }
};

INSTANTIATE_TEST_SUITE_P(KvDtypes, CudaKv8Test,
                         testing::Values(KvDtype::kInt8, KvDtype::kFp8),
                         [](const auto& param) {
                           return std::string(KvDtypeName(param.param));
                         });

TEST_P(CudaKv8Test, LogitsAreThoseOfTheCpuBackend) {
  const double tolerance =
      GetParam() == KvDtype::kInt8 ? kInt8Tolerance : kFp8Tolerance;
  for (const std::string& model : ModelNames()) {
    if (emulated() && model == "wide") continue;
    const auto cuda = Make(model);
    const auto cpu = MakeCpuBeside(model);
    for (const int32_t length : {1, 17, 70}) {
      const std::vector<TokenId> tokens = Prompt(length, 3 + length);
      const std::vector<BlockId> blocks = BlockRange(2, 5);
      const double error = RelativeError(RunWhole(*cuda, tokens, blocks),
                                         RunWhole(*cpu, tokens, blocks));
      EXPECT_LT(error, tolerance) << model << " " << length;
      RecordProperty(absl::StrCat(model, "_", length), absl::StrCat(error));
    }
  }
}

// KV that is the same on both: what the device reads is what was written.
TEST_P(CudaKv8Test, PagesMeanTheSameToTheCpuBackend) {
  for (const std::string model : {"odd", "latent"}) {
    const auto cuda = Make(model);
    const auto cpu = MakeCpuBeside(model);
    const std::vector<TokenId> tokens = Prompt(41, 9);
    const std::vector<BlockId> blocks = {7, 3, 12};
    StepPlan prompt;
    prompt.sequences = {Part(1, tokens, 0, 40, blocks)};
    cpu->Execute(prompt, NoHook);
    GiveKv(*cpu, *cuda, blocks, /*length=*/40);
    StepPlan next;
    next.sequences = {Part(1, tokens, 40, 41, blocks)};
    const StepResult expected = cpu->Execute(next, NoHook);
    const StepResult result = cuda->Execute(next, NoHook);
    const double error =
        RelativeError(result.sampled[0].logits, expected.sampled[0].logits);
    EXPECT_LT(error, kSameKvTolerance) << model;
    RecordProperty(model, absl::StrCat(error));
  }
}

TEST_P(CudaKv8Test, CutsPassesAndBlockSizesGiveTheSameLogits) {
  for (const std::string model : {"odd", "mistral", "latent"}) {
    const std::vector<TokenId> tokens = Prompt(70, 1);
    const auto engine = Make(model);
    const std::vector<float> expected =
        RunWhole(*engine, tokens, BlockRange(0, 5));
    for (const int32_t chunk : {7, 16, 64}) {
      const std::vector<BlockId> blocks = BlockRange(19, 5);
      StepResult result;
      for (int32_t first = 0; first < 70; first += chunk) {
        StepPlan plan;
        plan.sequences = {
            Part(1, tokens, first, std::min(70, first + chunk), blocks)};
        result = engine->Execute(plan, NoHook);
      }
      ASSERT_EQ(result.sampled.size(), 1u);
      EXPECT_TRUE(SameBits(result.sampled[0].logits, expected))
          << model << " " << chunk;
    }
    ForwardPassOptions few_rows = SmallPass();
    few_rows.max_rows = 13;
    EXPECT_TRUE(SameBits(
        RunWhole(*Make(model, few_rows), tokens, BlockRange(3, 5)), expected))
        << model;
    EXPECT_TRUE(SameBits(RunWhole(*Make(model, SmallPass(), 128), tokens, {1}),
                         expected))
        << model;
  }
}

// A sequence's next step: alone and among others, with graphs and without.
TEST_P(CudaKv8Test, BatchesGiveTheSameLogits) {
  const std::vector<TokenId> tokens = Prompt(19, 77);
  const std::vector<TokenId> other = Prompt(19, 78);
  const std::vector<BlockId> own = BlockRange(0, 2);
  std::vector<float> expected = RunWhole(*Make("qwen3"), tokens, own);
  for (const bool graphs : {false, true}) {
    ForwardPassOptions options = SmallPass();
    options.use_graphs = graphs;
    const auto engine = Make("qwen3", options);
    StepPlan prompt;
    prompt.sequences = {Part(0, tokens, 0, 18, own)};
    engine->Execute(prompt, NoHook);
    for (const int32_t batch : {1, 2, 9}) {
      EXPECT_TRUE(
          SameBits(RunInBatch(*engine, tokens, own, other, batch), expected))
          << batch << " " << graphs;
    }
  }
}

TEST_P(CudaKv8Test, SaysWhatItHolds) {
  const std::string suffix = GetParam() == KvDtype::kInt8 ? "-kv8" : "-kvfp8";
  EngineOptions options = Options("llama");
  const auto cuda = Make("llama");
  options.kv_dtype = "int8";
  const auto cpu = cpu::CpuEngine::Create(options);
  ASSERT_TRUE(cpu.ok()) << cpu.status();
  EXPECT_THAT(cuda->backend_name(), testing::StartsWith("cuda-sm"));
  EXPECT_THAT(cuda->backend_name(), testing::EndsWith(suffix));
  EXPECT_EQ(cuda->kv_layout().dtype, GetParam());
  EXPECT_EQ(cuda->kv_layout().page_bytes(), (*cpu)->kv_layout().page_bytes());
  EXPECT_EQ(cuda->kv_layout().num_blocks, (*cpu)->kv_layout().num_blocks);
  EXPECT_EQ(cuda->model_identity(), (*cpu)->model_identity());
  options = Options("llama");
  options.weights = "int4";
  const auto both = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT((*both)->backend_name(), testing::EndsWith("-int4" + suffix));
}

}  // namespace
}  // namespace baton::engine::cuda
