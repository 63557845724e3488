// The model of the tests made to be one whose answers are messages of Harmony.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/json.h"

namespace baton::router {

// Short, and none of a model's own.
inline constexpr char kHarmonyTemplate[] =
    R"({%- if reasoning_effort %}<|start|>system<|message|>effort )"
    R"({{ reasoning_effort }}<|end|>{% endif -%}
{%- for m in messages -%}
{%- if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>)"
    R"({{ m.content }}<|end|>
{%- else -%}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>)"
    R"({{ m.thinking }}<|end|>{% endif -%}
{%- for call in m.tool_calls or [] %}<|start|>assistant to=functions.)"
    R"({{ call.function.name }}<|channel|>commentary<|message|>)"
    R"({{ call.function.arguments | tojson }}<|call|>{% endfor -%}
{%- if m.content %}<|start|>assistant<|channel|>final<|message|>)"
    R"({{ m.content }}<|end|>{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|start|>assistant{% endif -%})";

// Writes the tokenizer.json of `model_dir` into `to`, with Harmony's markers,
// all but those `without`, as special tokens in the place of others. The
// vocabulary is as large as it was.
inline void WriteHarmonyTokenizer(
    const std::string& model_dir, const std::string& to,
    const std::vector<std::string>& without = {}) {
  nlohmann::json tokenizer =
      nlohmann::json::parse(std::ifstream(model_dir + "/tokenizer.json"));
  std::vector<std::string> special = {
      "<|bos|>",     "<|eos|>",       "<|start|>",  "<|end|>", "<|message|>",
      "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"};
  for (const std::string& left_out : without) std::erase(special, left_out);
  // The last words make room.
  nlohmann::json& vocab = tokenizer["model"]["vocab"];
  nlohmann::json& merges = tokenizer["model"]["merges"];
  const size_t keep = 2048 - special.size();
  while (vocab.size() > keep) {
    for (auto word = vocab.begin(); word != vocab.end(); ++word) {
      if (*word != vocab.size() - 1) continue;
      vocab.erase(word);
      break;
    }
    merges.erase(merges.size() - 1);
  }
  nlohmann::json& added = tokenizer["added_tokens"];
  const nlohmann::json like = added[0];
  added = nlohmann::json::array();
  for (size_t i = 0; i < special.size(); ++i) {
    added.push_back(like);
    added.back()["id"] = keep + i;
    added.back()["content"] = special[i];
  }
  tokenizer["post_processor"] = nullptr;
  std::filesystem::remove(to + "/tokenizer.json");
  std::ofstream(to + "/tokenizer.json") << tokenizer.dump();
}

}  // namespace baton::router
