// KV in int8 on a device: pages against those that the CPU backend writes, and
// the whole engine against the CPU backend and against itself.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cpu/kernel_choice.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/row_kernels.h"
#include "engine/kv_layout.h"
#include "tests/engine/cuda/device_fixture.h"

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using scheduling::StepResult;

// KV of both is int8 of floats that are nearly the same: here and there one
// rounds to the next integer. The CPU also rounds each key and value to
// bfloat16 where it reads them.
constexpr double kKv8Tolerance = 2e-2;

class FinishHeadsInt8Test : public DeviceTest {
 protected:
  static constexpr int32_t kHeads = 3;
  static constexpr int32_t kKvHeads = 2;
  static constexpr int32_t kRows = 37;

  void Make(int32_t head_dim, int32_t block_size) {
    layout_ = {};
    layout_.num_layers = 1;
    layout_.num_blocks = 6;
    layout_.block_size = block_size;
    layout_.num_kv_heads = kKvHeads;
    layout_.head_dim = head_dim;
    layout_.dtype = KvDtype::kInt8;
    heads_per_row_ = kHeads + 2 * kKvHeads;
    qkv_ = Floats(
        RandomBf16(int64_t{kRows} * heads_per_row_ * head_dim, head_dim));
    // Values that are no bfloat16, and sizes of all kinds.
    for (size_t i = 0; i < qkv_.size(); ++i) {
      const size_t row = i / (heads_per_row_ * head_dim);
      qkv_[i] *= 1.0f / 3 * std::ldexp(1.0f, static_cast<int>(row % 9) - 4);
    }
    std::fill_n(Head(5, kHeads), head_dim, 0.0f);
    std::fill_n(Head(6, kHeads + kKvHeads), head_dim, 1e-36f);
    rope_.clear();
    for (int32_t position = 0; position < kRows; ++position) {
      for (int32_t i = 0; i < head_dim; ++i) {
        const int32_t pair = i % (head_dim / 2);
        const double angle = position * std::pow(0.7, pair);
        rope_.push_back(
            static_cast<float>(i == pair ? std::cos(angle) : std::sin(angle)));
      }
    }
  }

  float* Head(int32_t row, int32_t head) {
    return qkv_.data() +
           (int64_t{row} * heads_per_row_ + head) * layout_.head_dim;
  }

  // All rows are a sequence's tokens.
  std::vector<std::byte> OnDevice() {
    std::vector<RowPlace> places(kRows + 1);  // the last is not there
    for (int32_t row = 0; row < kRows; ++row) places[row] = {row, 0};
    FinishHeadsArgs args;
    args.qkv = Put(qkv_);
    args.places = Put(places);
    args.rows = kRows + 1;
    args.num_heads = kHeads;
    args.num_kv_heads = kKvHeads;
    args.head_dim = layout_.head_dim;
    args.stored_head_dim = layout_.stored_head_dim();
    args.rope = Put(rope_);
    args.queries =
        Take<uint16_t>(int64_t{kRows} * kHeads * layout_.stored_head_dim());
    args.pages = Put(std::vector<std::byte>(layout_.total_bytes()));
    args.page_bytes = layout_.page_bytes();
    args.head_bytes = layout_.head_bytes();
    args.values_offset = layout_.ValuesOffset();
    args.scales_offset = layout_.KeyScalesOffset();
    args.block_size = layout_.block_size;
    args.kv_dtype = layout_.dtype;
    args.block_tables = Put(blocks_);
    RunFinishHeads(args, stream().handle());
    return Get(args.pages, layout_.total_bytes());
  }

  // The portable kernels, which round after each operation as the device does.
  std::vector<std::byte> OnCpu() {
    const cpu::Kernels& kernels = *cpu::FindKernels("portable").value();
    std::vector<std::byte> memory(layout_.total_bytes());
    const cpu::KvPages pages(kernels, layout_, memory.data());
    const int32_t half = layout_.head_dim / 2;
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        const float* const x = Head(row, kHeads + head);
        std::vector<float> key(x, x + layout_.head_dim);
        const float* const cosines =
            rope_.data() + int64_t{row} * layout_.head_dim;
        kernels.rope(key.data(), cosines, cosines + half, half);
        pages.WriteKey(0, blocks_, row, head, key.data());
        pages.WriteValue(0, blocks_, row, head,
                         Head(row, kHeads + kKvHeads + head));
      }
    }
    return memory;
  }

  float Scale(const std::vector<std::byte>& memory, int32_t position,
              int32_t head, int64_t offset) const {
    float scale;
    std::memcpy(
        &scale,
        memory.data() +
            layout_.PageOffset(0, blocks_[position / layout_.block_size]) +
            head * layout_.head_bytes() + offset +
            position % layout_.block_size * sizeof(float),
        sizeof(scale));
    return scale;
  }

  const std::vector<BlockId> blocks_ = {4, 1, 3};
  KvLayout layout_;
  int32_t heads_per_row_ = 0;
  std::vector<float> qkv_;
  std::vector<float> rope_;
};

TEST_F(FinishHeadsInt8Test, PagesAreThoseOfTheCpuBackendToTheBit) {
  for (const auto& [head_dim, block_size] :
       std::vector<std::pair<int32_t, int32_t>>{
           {10, 16}, {32, 32}, {80, 16}, {128, 128}}) {
    Make(head_dim, block_size);
    const std::vector<std::byte> device = OnDevice();
    EXPECT_TRUE(device == OnCpu()) << head_dim << " " << block_size;
    EXPECT_EQ(Scale(device, 5, 0, layout_.KeyScalesOffset()), 0.0f);
    EXPECT_EQ(Scale(device, 6, 0, layout_.ValueScalesOffset()), 0.0f);
    EXPECT_GT(Scale(device, 6, 0, layout_.KeyScalesOffset()), 0.0f);
  }
}

// A scale that is NaN says so, and touches no other token or head.
TEST_F(FinishHeadsInt8Test, WhatIsNotFiniteHasAScaleThatIsNaN) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity()}) {
    Make(/*head_dim=*/48, /*block_size=*/16);
    const std::vector<std::byte> before = OnDevice();
    Head(9, kHeads + 1)[40] = bad;             // a key
    Head(20, kHeads + kKvHeads + 0)[7] = bad;  // a value
    const std::vector<std::byte> after = OnDevice();
    for (int32_t row = 0; row < kRows; ++row) {
      for (int32_t head = 0; head < kKvHeads; ++head) {
        for (const int64_t offset :
             {layout_.KeyScalesOffset(), layout_.ValueScalesOffset()}) {
          const bool is_key = offset == layout_.KeyScalesOffset();
          const float scale = Scale(after, row, head, offset);
          if (is_key ? row == 9 && head == 1 : row == 20 && head == 0) {
            EXPECT_TRUE(std::isnan(scale)) << row << " " << head;
          } else {
            EXPECT_EQ(scale, Scale(before, row, head, offset))
                << row << " " << head;
          }
        }
      }
    }
  }
}

class CudaKv8Test : public DeviceTest {
 protected:
  static EngineOptions Options(const std::string& model,
                               int32_t block_size = 16) {
    EngineOptions options = OptionsFor(ModelDirOf(model), block_size);
    options.kv_dtype = "int8";
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
  static std::unique_ptr<Engine> MakeCpuKv8(const std::string& model) {
    auto engine = cpu::CpuEngine::Create(Options(model));
    CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }
};

TEST_F(CudaKv8Test, LogitsAreThoseOfTheCpuBackend) {
  for (const std::string& model : ModelNames()) {
    if (emulated() && model == "wide") continue;
    const auto cuda = Make(model);
    const auto cpu = MakeCpuKv8(model);
    for (const int32_t length : {1, 17, 70}) {
      const std::vector<TokenId> tokens = Prompt(length, 3 + length);
      const std::vector<BlockId> blocks = BlockRange(2, 5);
      const double error = RelativeError(RunWhole(*cuda, tokens, blocks),
                                         RunWhole(*cpu, tokens, blocks));
      EXPECT_LT(error, kKv8Tolerance) << model << " " << length;
      RecordProperty(absl::StrCat(model, "_", length), absl::StrCat(error));
    }
  }
}

// KV that the CPU backend wrote, read on the device.
TEST_F(CudaKv8Test, PagesMeanTheSameToTheCpuBackend) {
  const auto cuda = Make("odd");
  const auto cpu = MakeCpuKv8("odd");
  const KvLayout& layout = cuda->kv_layout();
  ASSERT_EQ(layout.block_bytes(), cpu->kv_layout().block_bytes());
  const std::vector<TokenId> tokens = Prompt(41, 9);
  const std::vector<BlockId> blocks = {7, 3, 12};
  const std::vector<float> expected = RunWhole(*cpu, tokens, BlockRange(20, 3));
  StepPlan prompt;
  prompt.sequences = {Part(1, tokens, 0, 40, blocks)};
  cpu->Execute(prompt, NoHook);
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (const BlockId block : blocks) {
      const std::byte* const page =
          cpu->kv_memory().data() + cpu->kv_layout().PageOffset(layer, block);
      const DeviceKv kv = cuda->device_kv(0);
      kv.compute->CopyToDevice(kv.memory + layout.PageOffset(layer, block),
                               page, layout.page_bytes());
      kv.compute->Wait();
    }
  }
  StepPlan next;
  next.sequences = {Part(1, tokens, 40, 41, blocks)};
  const StepResult result = cuda->Execute(next, NoHook);
  EXPECT_LT(RelativeError(result.sampled[0].logits, expected), kKv8Tolerance);
}

TEST_F(CudaKv8Test, CutsPassesAndBlockSizesGiveTheSameLogits) {
  for (const std::string model : {"odd", "mistral"}) {
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
TEST_F(CudaKv8Test, BatchesGiveTheSameLogits) {
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

TEST_F(CudaKv8Test, SaysWhatItHolds) {
  EngineOptions options = Options("llama");
  const auto cuda = Make("llama");
  const auto cpu = MakeCpuKv8("llama");
  EXPECT_THAT(cuda->backend_name(), testing::StartsWith("cuda-sm"));
  EXPECT_THAT(cuda->backend_name(), testing::EndsWith("-kv8"));
  EXPECT_EQ(cuda->kv_layout().dtype, KvDtype::kInt8);
  EXPECT_EQ(cuda->kv_layout().page_bytes(), cpu->kv_layout().page_bytes());
  EXPECT_EQ(cuda->kv_layout().num_blocks, cpu->kv_layout().num_blocks);
  EXPECT_EQ(cuda->model_identity(), cpu->model_identity());
  options.weights = "int4";
  const auto both = CudaEngine::Create(options, SmallPass());
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT((*both)->backend_name(), testing::EndsWith("-int4-kv8"));
}

}  // namespace
}  // namespace baton::engine::cuda
