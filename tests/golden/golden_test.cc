// The engine against an independent reference (README.md), and against itself:
// "same answer everywhere" (engine/engine.h).
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/log.h"
#include "engine/engine_factory.h"
#include "tests/golden/engine_driver.h"
#include "tests/golden/golden_check.h"
#include "tests/golden/golden_model.h"

namespace baton::engine {
namespace {

using Logits = std::vector<float>;

// What an engine is made with: which instruction set, "" for the best one.
std::vector<std::string> InstructionSets() {
  std::vector<std::string> sets = {"", "portable"};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets.push_back("avx2");
  }
  return sets;
}

// Bits, not values: -0 and 0 differ.
bool BitwiseEqual(const Logits& a, const Logits& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class GoldenTest
    : public testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override { golden_ = LoadGoldenModel(std::get<0>(GetParam())); }

  std::unique_ptr<Engine> MakeEngine(int32_t num_threads = 1,
                                     int32_t block_size = 16,
                                     const std::string& weights = "bf16",
                                     const std::string& kv_dtype = "bf16") {
    EngineOptions options;
    options.weights = weights;
    options.kv_dtype = kv_dtype;
    options.model_dir = golden_.dir;
    if (!golden_.adapter_dir.empty()) {
      options.adapters = {{"adapter", golden_.adapter_dir}};
    }
    options.cpu_isa = std::get<1>(GetParam());
    options.num_threads = num_threads;
    options.block_size = block_size;
    options.kv_memory_bytes = int64_t{2} << 20;
    auto engine = CreateEngine(options);
    CHECK(engine.ok()) << engine.status();
    if (!options.cpu_isa.empty() && weights == "bf16" && kv_dtype == "bf16") {
      CHECK_EQ((*engine)->backend_name(), "cpu-" + options.cpu_isa);
    }
    return *std::move(engine);
  }

  // Logits after every position, each sequence alone, one token per step.
  std::vector<DrivenSequence> RunAlone(Engine& engine, int32_t chunk) {
    std::vector<DrivenSequence> done;
    for (const GoldenPrompt& prompt : golden_.prompts) {
      EngineDriver driver(engine);
      DrivenSequence sequence = driver.NewSequence(prompt.tokens, 0);
      driver.RunPrompt(sequence, chunk);
      done.push_back(std::move(sequence));
    }
    return done;
  }

  // Every position that `actual` has must have the logits of `expected`.
  static void ExpectSameBits(const DrivenSequence& actual,
                             const DrivenSequence& expected,
                             const std::string& where) {
    ASSERT_FALSE(actual.logits.empty()) << where;
    for (const auto& [position, logits] : actual.logits) {
      const auto it = expected.logits.find(position);
      ASSERT_NE(it, expected.logits.end()) << where << " " << position;
      EXPECT_TRUE(BitwiseEqual(logits, it->second))
          << where << " position " << position;
    }
  }

  GoldenModel golden_;
};

// Bounds as shares of the logits' spread (README.md).
TEST_P(GoldenTest, QuantizedLogitsStayWithinTheirBounds) {
  struct Case {
    const char* weights;
    const char* kv;
    double bound;
  };
  for (const Case& c : {Case{"bf16", "int8", 0.012},
                        {"int8", "bf16", 0.03},
                        {"int8", "int8", 0.03},
                        {"int4", "bf16", 0.30},
                        {"int4", "int8", 0.30}}) {
    const std::unique_ptr<Engine> engine = MakeEngine(1, 16, c.weights, c.kv);
    EngineDriver driver(*engine);
    Deviation deviation;
    double squares = 0.0;
    int64_t count = 0;
    for (const GoldenPrompt& prompt : golden_.prompts) {
      DrivenSequence sequence = driver.NewSequence(prompt.tokens, 0);
      driver.RunPrompt(sequence, 1);
      for (const auto& [position, logits] : sequence.logits) {
        deviation.Add(logits, prompt.logits[position]);
        for (const float x : prompt.logits[position]) {
          squares += double{x} * x;
          ++count;
        }
      }
    }
    const double share = deviation.Rms() / std::sqrt(squares / count);
    RecordProperty(absl::StrCat("share_", c.weights, "_kv_", c.kv),
                   absl::StrCat(share));
    EXPECT_LE(share, c.bound) << c.weights << " weights, " << c.kv << " KV";
    // A dtype that changes nothing was not used.
    EXPECT_GT(share, 1e-4);
  }
}

TEST_P(GoldenTest, LogitsAreTheReferencesWhateverTheChunk) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  for (int32_t chunk : {1, 3, 7, 16, kWholePrompt}) {
    ExpectReferenceLogits(*engine, golden_, chunk);
  }
}

TEST_P(GoldenTest, LogitsAreTheReferencesWhateverTheBlockSize) {
  for (int32_t block_size : {32, 64}) {
    const std::unique_ptr<Engine> engine = MakeEngine(1, block_size);
    ExpectReferenceLogits(*engine, golden_, 1);
    ExpectReferenceLogits(*engine, golden_, kWholePrompt);
  }
}

TEST_P(GoldenTest, GreedyTokensAreTheReferences) {
  ExpectReferenceTokens(*MakeEngine(), golden_);
}

TEST_P(GoldenTest, SameBitsWhateverTheChunk) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  const std::vector<DrivenSequence> expected = RunAlone(*engine, 1);
  for (int32_t chunk : {2, 3, 7, 16, 33, kWholePrompt}) {
    const std::vector<DrivenSequence> actual = RunAlone(*engine, chunk);
    for (size_t i = 0; i < actual.size(); ++i) {
      ExpectSameBits(actual[i], expected[i],
                     absl::StrCat("prompt ", i, " chunk ", chunk));
    }
  }
}

TEST_P(GoldenTest, SameBitsWhateverTheBatchAndTheBlocks) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  const std::vector<DrivenSequence> expected = RunAlone(*engine, 1);
  std::vector<size_t> order(golden_.prompts.size());
  std::iota(order.begin(), order.end(), 0);
  do {
    // One driver for all: other blocks for each sequence in each order.
    EngineDriver driver(*engine);
    std::vector<DrivenSequence> sequences;
    for (size_t i : order) {
      sequences.push_back(driver.NewSequence(golden_.prompts[i].tokens, 0));
    }
    std::vector<EngineDriver::Part> parts;
    for (DrivenSequence& sequence : sequences) {
      parts.push_back({&sequence, sequence.prompt_length});
    }
    driver.Step(parts, /*append=*/false);
    for (size_t i = 0; i < order.size(); ++i) {
      ExpectSameBits(sequences[i], expected[order[i]],
                     absl::StrCat("prompt ", order[i], " in a batch"));
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

// Sequences that decode and one that is prefilled in the same steps: as a
// decode worker runs a local prefill.
TEST_P(GoldenTest, SameBitsForDecodeBesidePrefill) {
  const std::unique_ptr<Engine> engine = MakeEngine();
  constexpr int32_t kOutputs = 10;
  std::vector<DrivenSequence> expected;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    EngineDriver driver(*engine);
    DrivenSequence sequence = driver.NewSequence(prompt.tokens, kOutputs);
    driver.RunPrompt(sequence, 1);
    // Teacher forcing: the reference's tokens, whatever the engine samples.
    sequence.tokens.insert(sequence.tokens.end(), prompt.greedy.begin(),
                           prompt.greedy.begin() + kOutputs);
    while (sequence.computed < static_cast<int32_t>(sequence.tokens.size())) {
      driver.Step({{&sequence, 1}}, /*append=*/false);
    }
    expected.push_back(std::move(sequence));
  }

  EngineDriver driver(*engine);
  std::vector<DrivenSequence> sequences;
  for (const GoldenPrompt& prompt : golden_.prompts) {
    sequences.push_back(driver.NewSequence(prompt.tokens, kOutputs));
    DrivenSequence& sequence = sequences.back();
    sequence.tokens.insert(sequence.tokens.end(), prompt.greedy.begin(),
                           prompt.greedy.begin() + kOutputs);
  }
  // Sequence i takes chunks of another size; each decodes once its prompt is
  // done, beside the prompts that are not.
  const int32_t chunks[] = {1, 2, 3, 7};
  for (;;) {
    std::vector<EngineDriver::Part> parts;
    for (size_t i = 0; i < sequences.size(); ++i) {
      DrivenSequence& s = sequences[i];
      const auto total = static_cast<int32_t>(s.tokens.size());
      if (s.computed == total) continue;
      const int32_t left = s.prompt_length - s.computed;
      parts.push_back({&s, left > 0 ? std::min(chunks[i % 4], left) : 1});
    }
    if (parts.empty()) break;
    driver.Step(parts, /*append=*/false);
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    ExpectSameBits(sequences[i], expected[i], absl::StrCat("prompt ", i));
  }
}

TEST_P(GoldenTest, SameBitsWhateverTheThreads) {
  const std::unique_ptr<Engine> one = MakeEngine(1);
  const std::vector<DrivenSequence> expected = RunAlone(*one, 1);
  for (int32_t num_threads : {2, 3}) {
    const std::unique_ptr<Engine> many = MakeEngine(num_threads);
    for (int32_t chunk : {1, 7, kWholePrompt}) {
      const std::vector<DrivenSequence> actual = RunAlone(*many, chunk);
      for (size_t i = 0; i < actual.size(); ++i) {
        ExpectSameBits(actual[i], expected[i],
                       absl::StrCat("prompt ", i, " threads ", num_threads,
                                    " chunk ", chunk));
      }
    }
  }
}

TEST_P(GoldenTest, IdentityIsOfTheModelAlone) {
  const std::unique_ptr<Engine> engine = MakeEngine(1, 16);
  EXPECT_EQ(engine->model_identity(), MakeEngine(2, 32)->model_identity());
  EXPECT_FALSE(engine->model_identity().empty());
}

// The control: with one field of the config wrong, the same comparison fails.
TEST(GoldenControlTest, AWrongConfigIsSeen) {
  const std::tuple<const char*, const char*, nlohmann::json> mistakes[] = {
      {"llama2", "rope_theta", 12000.0},
      {"llama3", "rope_scaling", nullptr},
      {"llama_linear", "rms_norm_eps", 1e-5},
      {"mistral", "sliding_window", 9},
      {"qwen2", "max_window_layers", 2},
      {"qwen3", "rope_parameters", {{"rope_theta", 500000.0}}},
      {"mixtral", "num_experts_per_tok", 1},
      {"qwen3_moe", "norm_topk_prob", true},
      {"glm4_moe", "partial_rotary_factor", 1.0},
      {"glm4_moe", "routed_scaling_factor", 1.0},
      {"glm4_moe", "n_shared_experts", 0},
      {"phi3", "partial_rotary_factor", 1.0},
      {"smollm3", "no_rope_layer_interval", 4},
      {"phi3", "sliding_window", 21},
      {"gemma3", "rope_local_base_freq", 60.0},
      {"gemma3", "query_pre_attn_scalar", 16},
      {"gemma3", "sliding_window", 10},
      {"gemma3", "layer_types", {"sliding_attention", "sliding_attention"}},
      {"deepseek_v2", "topk_method", "greedy"},
      {"deepseek_v2", "routed_scaling_factor", 1.0},
      {"deepseek_v3", "topk_group", 3},
      {"deepseek_v3", "rope_scaling", nullptr},
      {"phi3_long", "max_position_embeddings", 512},
      {"phi3_long", "original_max_position_embeddings", 96},
      {"qwen2_yarn",
       "rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"beta_fast", 2.0}}}};
  for (const auto& [name, field, value] : mistakes) {
    const GoldenModel golden = LoadGoldenModel(name);
    const std::filesystem::path dir =
        std::filesystem::path(testing::TempDir()) /
        absl::StrCat("baton_golden_", getpid(), "_", name);
    std::filesystem::copy(golden.dir, dir);
    nlohmann::json config =
        nlohmann::json::parse(std::ifstream(dir / "config.json"));
    ASSERT_TRUE(config.contains(field)) << name;
    config[field] = value;
    std::ofstream(dir / "config.json") << config;
    EngineOptions options;
    options.model_dir = dir.string();
    options.num_threads = 1;
    options.kv_memory_bytes = int64_t{2} << 20;
    const auto engine = CreateEngine(options);
    std::filesystem::remove_all(dir);
    ASSERT_TRUE(engine.ok()) << engine.status();

    EngineDriver driver(**engine);
    Deviation deviation;
    for (const GoldenPrompt& prompt : golden.prompts) {
      DrivenSequence sequence = driver.NewSequence(prompt.tokens, 0);
      driver.RunPrompt(sequence, 1);
      for (const auto& [position, logits] : sequence.logits) {
        deviation.Add(logits, prompt.logits[position]);
      }
    }
    EXPECT_GT(deviation.Rms(), golden.rms_error) << name << " " << field;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         testing::Combine(testing::ValuesIn(GoldenNames()),
                                          testing::ValuesIn(InstructionSets())),
                         [](const auto& info) {
                           const std::string& isa = std::get<1>(info.param);
                           return std::get<0>(info.param) + "_" +
                                  (isa.empty() ? "best" : isa);
                         });

}  // namespace
}  // namespace baton::engine
