#include "common/text_model_json.h"

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace baton {
namespace {

using nlohmann::json;

constexpr absl::string_view kText = "Gemma3ForCausalLM";
constexpr absl::string_view kWithImages = "Gemma3ForConditionalGeneration";

bool IsNamed(const json& root, absl::string_view name) {
  const auto list = root.find("architectures");
  return list != root.end() && list->is_array() && list->size() == 1 &&
         list->front().is_string() &&
         list->front().get_ref<const std::string&>() == name;
}

}  // namespace

json TextModelJson(json root) {
  if (!root.is_object()) return root;
  if (IsNamed(root, kWithImages)) {
    json text = json::object();
    if (const auto it = root.find("text_config"); it != root.end()) {
      // Left to be refused by whoever reads it.
      if (!it->is_object()) return root;
      text = *it;
    }
    for (const char* const name :
         {"bos_token_id", "eos_token_id", "quantization_config",
          "tie_word_embeddings", "torch_dtype", "dtype"}) {
      const auto it = root.find(name);
      if (it != root.end() && !it->is_null()) text[name] = *it;
    }
    text["architectures"] = {std::string(kText)};
    root = std::move(text);
  }
  if (!IsNamed(root, kText)) return root;
  const std::pair<const char*, json> defaults[] = {
      {"vocab_size", 262208},
      {"hidden_size", 2304},
      {"intermediate_size", 9216},
      {"num_hidden_layers", 26},
      {"num_attention_heads", 8},
      {"num_key_value_heads", 4},
      {"head_dim", 256},
      {"max_position_embeddings", 131072},
      {"tie_word_embeddings", true},
      {"bos_token_id", 2},
      {"eos_token_id", 1},
  };
  for (const auto& [name, value] : defaults) {
    if (!root.contains(name)) root[name] = value;
  }
  return root;
}

}  // namespace baton
