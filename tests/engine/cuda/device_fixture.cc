#include "tests/engine/cuda/device_fixture.h"

#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/cpu/cpu_engine.h"
#include "engine/cuda/device_kernels.h"
#include "engine/float_convert.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::SamplingParams;
using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;

SamplingParams GreedyParams() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}

std::vector<std::pair<std::string, TinyModelOptions>> DeviceModels() {
  TinyModelOptions llama;
  TinyModelOptions odd;
  odd.hidden = 57;
  odd.heads = 6;
  odd.kv_heads = 3;
  odd.head_dim = 10;
  odd.intermediate = 101;
  odd.vocab_size = 301;
  odd.layers = 3;
  odd.tie_word_embeddings = false;
  odd.dtype = "F32";
  TinyModelOptions mistral;
  mistral.architecture = "MistralForCausalLM";
  mistral.sliding_window = 20;
  mistral.tie_word_embeddings = false;
  TinyModelOptions qwen2;
  qwen2.architecture = "Qwen2ForCausalLM";
  qwen2.dtype = "F16";
  TinyModelOptions qwen3;
  qwen3.architecture = "Qwen3ForCausalLM";
  qwen3.hidden = 96;
  qwen3.head_dim = 32;
  TinyModelOptions wide;
  wide.hidden = 576;
  wide.heads = 9;
  wide.kv_heads = 3;
  wide.head_dim = 64;
  wide.intermediate = 1100;
  wide.layers = 1;
  TinyModelOptions moe;
  moe.architecture = "Glm4MoeForCausalLM";
  moe.experts = 9;
  moe.experts_per_token = 3;
  moe.first_layer_dense = true;
  TinyModelOptions gpt_oss;
  gpt_oss.architecture = "GptOssForCausalLM";
  gpt_oss.sliding_window = 20;
  TinyModelOptions latent;
  latent.architecture = "DeepseekV3ForCausalLM";
  latent.heads = 6;
  latent.experts = 8;
  latent.experts_per_token = 3;
  latent.first_layer_dense = true;
  return {{"llama", llama}, {"odd", odd},         {"mistral", mistral},
          {"qwen2", qwen2}, {"qwen3", qwen3},     {"wide", wide},
          {"moe", moe},     {"gpt_oss", gpt_oss}, {"latent", latent}};
}

class DeviceModelDirs final : public testing::Environment {
 public:
  void SetUp() override {
    constexpr char kParents[] = "BATON_TEST_DEVICE_MODEL_DIRS";
    if (const char* parents = std::getenv(kParents)) {
      root_ = parents;
      return;
    }
    owned_ = true;
    root_ = absl::StrCat(testing::TempDir(), "/engine_cuda_models_", getpid());
    setenv(kParents, root_.c_str(), /*overwrite=*/1);
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    for (const auto& [name, options] : DeviceModels()) {
      const absl::Status status = test::WriteTinyModel(Dir(name), options);
      CHECK(status.ok()) << status;
    }
  }
  void TearDown() override {
    if (owned_) std::filesystem::remove_all(root_);
  }
  std::string Dir(const std::string& name) const { return root_ + "/" + name; }

 private:
  std::string root_;
  bool owned_ = false;
};

const DeviceModelDirs* const device_model_dirs = static_cast<DeviceModelDirs*>(
    testing::AddGlobalTestEnvironment(new DeviceModelDirs));

}  // namespace

void DeviceTest::SetUp() {
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  emulated_ = absl::StrContains(device->name, "emulated");
  kernels_ = KernelsOf(*device);
  stream_ = std::make_unique<Stream>();
}

std::vector<std::byte> DeviceTest::ReadStaged(const StagedMemory& staged,
                                              int32_t layer, BlockId block) {
  const std::byte* const at =
      staged.memory.data() + staged.layout.PageOffset(layer, block);
  const int64_t bytes = staged.layout.page_bytes();
  return staged.on_device ? Get(at, bytes)
                          : std::vector<std::byte>(at, at + bytes);
}

void DeviceTest::WriteStaged(const StagedMemory& staged, int32_t layer,
                             BlockId block,
                             const std::vector<std::byte>& page) {
  CHECK_EQ(static_cast<int64_t>(page.size()), staged.layout.page_bytes());
  std::byte* const at =
      staged.memory.data() + staged.layout.PageOffset(layer, block);
  if (staged.on_device) {
    stream_->CopyToDevice(at, page.data(), Bytes(page));
    stream_->Wait();
  } else {
    std::copy(page.begin(), page.end(), at);
  }
}

std::vector<uint16_t> RandomBf16(int64_t count, uint32_t seed, float scale) {
  std::mt19937 bits(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) value = FloatToBf16(normal(bits));
  return values;
}

std::vector<float> Floats(const std::vector<uint16_t>& bf16) {
  std::vector<float> values;
  values.reserve(bf16.size());
  for (const uint16_t bits : bf16) values.push_back(Bf16ToFloat(bits));
  return values;
}

std::vector<TokenId> Prompt(int32_t length, uint32_t seed) {
  std::vector<TokenId> tokens(length);
  for (int32_t i = 0; i < length; ++i) {
    tokens[i] = static_cast<TokenId>((seed * 7919u + i * 104729u) % 256);
  }
  return tokens;
}

std::vector<BlockId> BlockRange(BlockId first, int32_t count) {
  std::vector<BlockId> blocks(count);
  std::iota(blocks.begin(), blocks.end(), first);
  return blocks;
}

PlannedSequence Part(uint64_t id, const std::vector<TokenId>& all,
                     int32_t first, int32_t end,
                     const std::vector<BlockId>& blocks) {
  static const auto* const greedy = new SamplingParams(GreedyParams());
  PlannedSequence s;
  s.sequence = SequenceId{id};
  s.tokens = absl::MakeSpan(all).subspan(first, end - first);
  s.first_position = first;
  s.blocks = blocks;
  s.sample = end == static_cast<int32_t>(all.size());
  s.sampling = greedy;
  s.history = all;
  s.prompt_length = 1;
  s.want_logits = true;
  return s;
}

const std::vector<std::string>& ModelNames() {
  static const auto* const names = [] {
    auto* const all = new std::vector<std::string>;
    for (const auto& model : DeviceModels()) all->push_back(model.first);
    return all;
  }();
  return *names;
}

std::string ModelDirOf(const std::string& name) {
  return device_model_dirs->Dir(name);
}

EngineOptions OptionsFor(const std::string& dir, int32_t block_size) {
  EngineOptions options;
  options.model_dir = dir;
  options.num_threads = 2;
  options.block_size = block_size;
  options.kv_memory_bytes = 4 << 20;
  return options;
}

ForwardPassOptions SmallPass() {
  ForwardPassOptions options;
  options.max_rows = 256;
  options.span_bytes = 4 << 20;
  options.logit_bytes = 1 << 20;
  const auto device = OpenDevice(0);
  if (device.ok()) options.kernels = KernelsOf(*device);
  return options;
}

std::unique_ptr<CudaEngine> MakeCuda(const EngineOptions& options,
                                     const ForwardPassOptions& pass_options) {
  auto engine = CudaEngine::Create(options, pass_options);
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::unique_ptr<CudaEngine> MakeCuda(const std::string& dir,
                                     const ForwardPassOptions& pass_options,
                                     int32_t block_size,
                                     const std::string& weights) {
  EngineOptions options = OptionsFor(dir, block_size);
  options.weights = weights;
  return MakeCuda(options, pass_options);
}

std::unique_ptr<Engine> MakeCpu(const std::string& dir,
                                const std::string& weights) {
  EngineOptions options = OptionsFor(dir);
  options.weights = weights;
  auto engine = cpu::CpuEngine::Create(options);
  CHECK(engine.ok()) << engine.status();
  return *std::move(engine);
}

std::vector<float> RunWhole(Engine& engine, const std::vector<TokenId>& tokens,
                            const std::vector<BlockId>& blocks,
                            int32_t adapter) {
  StepPlan plan;
  plan.sequences = {
      Part(1, tokens, 0, static_cast<int32_t>(tokens.size()), blocks)};
  plan.sequences[0].adapter = adapter;
  StepResult result = engine.Execute(plan, NoHook);
  CHECK_EQ(result.sampled.size(), 1u);
  CHECK(result.sampled[0].ok);
  return result.sampled[0].logits;
}

std::vector<float> RunInBatch(Engine& engine,
                              const std::vector<TokenId>& tokens,
                              const std::vector<BlockId>& blocks,
                              const std::vector<TokenId>& other,
                              int32_t count) {
  std::vector<std::vector<BlockId>> others;
  for (int32_t i = 0; i + 1 < count; ++i) {
    others.push_back(BlockRange(blocks.back() + 1 + i, 1));
  }
  StepPlan plan;
  for (int32_t i = 0; i + 1 < count; ++i) {
    plan.sequences.push_back(Part(1 + i, other, 0, 1, others[i]));
    plan.sequences.back().sample = true;
    plan.sequences.back().history = absl::MakeSpan(other).first(1);
  }
  const auto end = static_cast<int32_t>(tokens.size());
  plan.sequences.push_back(Part(0, tokens, end - 1, end, blocks));
  const StepResult result = engine.Execute(plan, NoHook);
  const auto it =
      std::find_if(result.sampled.begin(), result.sampled.end(),
                   [](const auto& s) { return s.sequence == SequenceId{0}; });
  CHECK(it != result.sampled.end());
  return it->logits;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double RelativeError(const std::vector<float>& a, const std::vector<float>& b) {
  CHECK_EQ(a.size(), b.size());
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - b[i], 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

}  // namespace baton::engine::cuda
