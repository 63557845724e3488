#include "tests/engine/cpu/engine_fixture.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cpu {
namespace {

using scheduling::PlannedSequence;
using scheduling::SamplingParams;
using scheduling::StepPlan;
using scheduling::StepResult;
using test::TinyModelOptions;
using test::WriteTinyModel;

SamplingParams Greedy() {
  SamplingParams params;
  params.temperature = 0.0f;
  return params;
}
const SamplingParams kGreedy = Greedy();

// A model per architecture, one of them with odd sizes everywhere.
std::vector<std::pair<std::string, TinyModelOptions>> Models() {
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
  // Odd sizes, too.
  TinyModelOptions experts;
  experts.architecture = "Qwen3MoeForCausalLM";
  experts.hidden = 57;
  experts.intermediate = 37;
  experts.layers = 3;
  experts.experts = 7;
  experts.experts_per_token = 3;
  experts.first_layer_dense = true;
  TinyModelOptions glm = experts;
  glm.architecture = "Glm4MoeForCausalLM";
  TinyModelOptions deepseek = experts;
  deepseek.architecture = "DeepseekV3ForCausalLM";
  deepseek.experts = 9;
  TinyModelOptions gpt_oss = experts;
  gpt_oss.architecture = "GptOssForCausalLM";
  gpt_oss.first_layer_dense = false;
  gpt_oss.sliding_window = 20;
  return {{"llama", llama}, {"odd", odd},         {"mistral", mistral},
          {"qwen2", qwen2}, {"qwen3", qwen3},     {"experts", experts},
          {"glm", glm},     {"gpt_oss", gpt_oss}, {"deepseek", deepseek}};
}

// Each process has its own, as two may run at a time. A death test starts the
// program again and never ends it well: it uses those of its parent.
class ModelDirs final : public testing::Environment {
 public:
  void SetUp() override {
    constexpr char kParents[] = "BATON_TEST_MODEL_DIRS";
    if (const char* parents = std::getenv(kParents)) {
      root_ = parents;
      return;
    }
    owned_ = true;
    root_ = absl::StrCat(testing::TempDir(), "/engine_cpu_models_", getpid());
    setenv(kParents, root_.c_str(), /*overwrite=*/1);
    std::filesystem::remove_all(root_);
    std::filesystem::create_directory(root_);
    for (const auto& [name, options] : Models()) {
      const absl::Status status = WriteTinyModel(Dir(name), options);
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

const ModelDirs* const model_dirs =
    static_cast<ModelDirs*>(testing::AddGlobalTestEnvironment(new ModelDirs));

}  // namespace

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
  PlannedSequence s;
  s.sequence = SequenceId{id};
  s.tokens = absl::MakeSpan(all).subspan(first, end - first);
  s.first_position = first;
  s.blocks = blocks;
  s.sample = end == static_cast<int32_t>(all.size());
  s.sampling = &kGreedy;
  s.history = all;
  s.prompt_length = 1;
  s.want_logits = true;
  return s;
}

std::unique_ptr<Engine> MakeEngine(const std::string& dir,
                                   const std::string& isa, const Dtypes& dtypes,
                                   int32_t num_threads, int32_t block_size) {
  EngineOptions options;
  options.model_dir = dir;
  options.weights = dtypes.weights;
  options.kv_dtype = dtypes.kv;
  options.draft_weights = dtypes.drafts;
  options.cpu_isa = isa;
  options.num_threads = num_threads;
  options.block_size = block_size;
  options.kv_memory_bytes = 4 << 20;
  auto engine = CreateEngine(options);
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

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && !a.empty() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string EngineModelDir(const std::string& name) {
  return model_dirs->Dir(name);
}

std::string EngineCaseName(const testing::TestParamInfo<EngineCase>& info) {
  const Dtypes& dtypes = std::get<2>(info.param);
  return std::get<0>(info.param) + "_" + std::get<1>(info.param)->name + "_" +
         dtypes.weights + "_kv_" + dtypes.kv;
}

}  // namespace baton::engine::cpu
