#include "tests/golden/golden_model.h"

#include <algorithm>
#include <fstream>

#include "common/json.h"
#include "common/log.h"

namespace baton::engine {

const std::vector<std::string>& GoldenModelNames() {
  static const auto* const names = new std::vector<std::string>{
      "llama2",      "llama3",     "llama_linear", "mistral",  "qwen2",
      "qwen3",       "mixtral",    "qwen3_moe",    "glm4_moe", "qwen2_yarn",
      "phi3",        "phi3_long",  "smollm3",      "gpt_oss",  "gemma3",
      "deepseek_v2", "deepseek_v3"};
  return *names;
}

const std::vector<std::string>& GoldenAdapterNames() {
  static const auto* const names = new std::vector<std::string>{
      "llama3_lora", "qwen2_lora", "mixtral_lora", "phi3_lora", "gemma3_lora"};
  return *names;
}

std::vector<std::string> GoldenNames() {
  std::vector<std::string> names = GoldenModelNames();
  names.insert(names.end(), GoldenAdapterNames().begin(),
               GoldenAdapterNames().end());
  return names;
}

GoldenModel LoadGoldenModel(const std::string& name) {
  GoldenModel model;
  model.name = name;
  const std::string golden = std::string(BATON_SOURCE_DIR) + "/tests/golden/";
  const bool adapter = std::count(GoldenAdapterNames().begin(),
                                  GoldenAdapterNames().end(), name) > 0;
  const std::string dir = golden + (adapter ? "adapters/" : "models/") + name;
  std::ifstream in(dir + "/expected.json");
  CHECK(in) << dir;
  const auto root = nlohmann::json::parse(in);
  model.dir = dir;
  if (adapter) {
    model.dir = golden + "models/" + root.at("model").get<std::string>();
    model.adapter_dir = dir;
  }
  model.max_error = root.at("tolerance").at("max");
  model.rms_error = root.at("tolerance").at("rms");
  CHECK(model.max_error > 0 && model.rms_error > 0);
  for (const auto& entry : root.at("prompts")) {
    GoldenPrompt prompt;
    entry.at("tokens").get_to(prompt.tokens);
    entry.at("logits").get_to(prompt.logits);
    entry.at("greedy").get_to(prompt.greedy);
    entry.at("gaps").get_to(prompt.gaps);
    entry.at("last_greedy_logits").get_to(prompt.last_greedy_logits);
    CHECK(!prompt.tokens.empty());
    CHECK_EQ(prompt.logits.size(), prompt.tokens.size());
    CHECK(!prompt.greedy.empty());
    CHECK_EQ(prompt.gaps.size(), prompt.greedy.size());
    model.prompts.push_back(std::move(prompt));
  }
  CHECK(!model.prompts.empty());
  return model;
}

}  // namespace baton::engine
