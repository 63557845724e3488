#include "router/served_model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/gguf/gguf_summary.h"
#include "common/json.h"
#include "common/log.h"
#include "common/model_name.h"
#include "common/status_macros.h"
#include "common/stretched_context.h"
#include "common/text_model_json.h"
#include "router/harmony/harmony_format.h"
#include "router/reasoning/reasoning_start.h"
#include "router/text/json_node.h"

namespace baton::router {
namespace {

using nlohmann::json;

constexpr int64_t kMaxVocabSize = 1 << 24;
constexpr int64_t kMaxLayers = 1 << 16;

// What transformers takes where config.json does not say (the defaults of
// LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config,
// Qwen3MoeConfig, Glm4MoeConfig, Phi3Config and SmolLM3Config).
int32_t DefaultMaxContext(const std::string& architecture) {
  if (architecture == "MistralForCausalLM") return 131072;
  if (architecture == "MixtralForCausalLM") return 131072;
  if (architecture == "Glm4MoeForCausalLM") return 131072;
  if (architecture == "Phi3ForCausalLM") return 4096;
  if (architecture == "SmolLM3ForCausalLM") return 32768;
  if (architecture == "Qwen2ForCausalLM") return 32768;
  if (architecture == "Qwen3ForCausalLM") return 32768;
  if (architecture == "Qwen3MoeForCausalLM") return 32768;
  return 2048;
}

// A whole number in [1, max].
absl::StatusOr<int32_t> Positive(const JsonNode& root, const char* field,
                                 int64_t max) {
  BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field(field));
  BATON_ASSIGN_OR_RETURN(const int64_t value, node.AsCount(max));
  if (value == 0) return node.Invalid("is 0, it must be at least 1");
  return static_cast<int32_t>(value);
}

// One token id or a list of them; absent gives `fallback`.
absl::StatusOr<std::vector<TokenId>> TokenList(const JsonNode& root,
                                               const char* field,
                                               int32_t vocab_size,
                                               std::vector<TokenId> fallback) {
  if (!root.Has(field)) return fallback;
  BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field(field));
  std::vector<JsonNode> entries = {node};
  if (node.value().is_array()) {
    BATON_ASSIGN_OR_RETURN(entries, node.Elements());
  }
  std::vector<TokenId> ids;
  for (const JsonNode& entry : entries) {
    BATON_ASSIGN_OR_RETURN(const int64_t id, entry.AsCount(vocab_size - 1));
    ids.push_back(static_cast<TokenId>(id));
  }
  return ids;
}

absl::StatusOr<double> Number(const JsonNode& root, const char* field,
                              double fallback) {
  if (!root.Has(field)) return fallback;
  BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field(field));
  if (!node.value().is_number()) return node.Invalid("is not a number");
  return node.value().get<double>();
}

absl::StatusOr<scheduling::SamplingParams> ReadSampling(const JsonNode& root) {
  scheduling::SamplingParams p;
  for (const auto& [field, value] :
       {std::pair("temperature", &p.temperature), std::pair("top_p", &p.top_p),
        std::pair("min_p", &p.min_p),
        std::pair("repetition_penalty", &p.repetition_penalty)}) {
    BATON_ASSIGN_OR_RETURN(const double number, Number(root, field, *value));
    *value = static_cast<float>(number);
  }
  if (root.Has("top_k")) {
    BATON_ASSIGN_OR_RETURN(const int64_t top_k,
                           root.Count("top_k", kMaxVocabSize));
    p.top_k = static_cast<int32_t>(top_k);
  }
  // "do_sample": false means greedy, whatever the other fields say.
  BATON_ASSIGN_OR_RETURN(const bool sample, root.Bool("do_sample", true));
  if (!sample) p.temperature = 0;
  if (absl::Status valid = scheduling::Validate(p); !valid.ok()) {
    return root.Invalid(
        absl::StrCat("has a bad sampling default: ", valid.message()));
  }
  return p;
}

// Where config.json says that YaRN stretches the context. What else is said
// there, and wrong, workers refuse. (Older files of Phi's call LongRoPE so,
// which stretches nothing.)
absl::Status StretchContext(const JsonNode& root, ServedModel* model) {
  const int32_t positions = model->max_context;
  for (const char* const name : {"rope_parameters", "rope_scaling"}) {
    if (!root.Has(name)) continue;
    BATON_ASSIGN_OR_RETURN(const JsonNode rope, root.Field(name));
    if (!rope.value().is_object()) return rope.Invalid("is not an object");
    BATON_ASSIGN_OR_RETURN(
        const std::string kind,
        rope.String(rope.Has("rope_type") ? "rope_type" : "type", ""));
    model->max_context = positions;  // stretched once, where both say so
    if (kind != "yarn" || model->architecture == "Phi3ForCausalLM") continue;
    BATON_ASSIGN_OR_RETURN(const double factor, Number(rope, "factor", 1.0));
    int32_t original = positions;
    if (rope.Has("original_max_position_embeddings")) {
      BATON_ASSIGN_OR_RETURN(
          original,
          Positive(rope, "original_max_position_embeddings", kMaxContext));
    }
    model->max_context = StretchedContext(positions, original, factor);
  }
  return absl::OkStatus();
}

absl::Status ReadConfig(const JsonNode& root, ServedModel* model) {
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> architectures,
                         root.Array("architectures"));
  if (architectures.empty()) return root.Invalid("has empty \"architectures\"");
  BATON_ASSIGN_OR_RETURN(model->architecture, architectures[0].AsString());
  BATON_ASSIGN_OR_RETURN(model->vocab_size,
                         Positive(root, "vocab_size", kMaxVocabSize));
  BATON_ASSIGN_OR_RETURN(model->num_layers,
                         Positive(root, "num_hidden_layers", kMaxLayers));
  model->max_context = DefaultMaxContext(model->architecture);
  if (root.Has("max_position_embeddings")) {
    BATON_ASSIGN_OR_RETURN(
        model->max_context,
        Positive(root, "max_position_embeddings", kMaxContext));
  }
  BATON_RETURN_IF_ERROR(StretchContext(root, model));
  BATON_ASSIGN_OR_RETURN(
      model->eos_token_ids,
      TokenList(root, "eos_token_id", model->vocab_size, {}));
  return absl::OkStatus();
}

absl::Status ReadGguf(const std::string& path, ServedModel* model,
                      std::unique_ptr<Tokenizer>* tokenizer) {
  BATON_ASSIGN_OR_RETURN(const auto file, gguf::GgufFile::Open(path));
  BATON_ASSIGN_OR_RETURN(const gguf::Summary summary, gguf::ReadSummary(*file));
  model->architecture = summary.model_class;
  model->vocab_size = summary.vocab_size;
  model->num_layers = summary.num_layers;
  model->max_context = summary.context_length;
  model->eos_token_ids = summary.eos;
  BATON_ASSIGN_OR_RETURN(*tokenizer, Tokenizer::Load(path));
  return absl::OkStatus();
}

// Whether an answer's text has the markers: special tokens are no part of it.
bool HasThinkMarkers(const Tokenizer& tokenizer) {
  for (const absl::string_view marker : {kThinkBegins, kThinkEnds}) {
    const auto tokens = tokenizer.Encode(marker, {.add_special_tokens = false});
    if (!tokens.ok() ||
        std::any_of(tokens->begin(), tokens->end(), [&](TokenId token) {
          return tokenizer.IsSpecial(token);
        })) {
      return false;
    }
  }
  return true;
}

// Whether all that tells messages apart are tokens; then answers' text has
// them, but for those that end an answer, which do so whatever the files say.
bool ShowHarmonyMarkers(Tokenizer* tokenizer, ServedModel* model) {
  std::vector<TokenId> markers;
  std::vector<TokenId> ends;
  for (const absl::string_view marker : kHarmonyMarkers) {
    const auto tokens =
        tokenizer->Encode(marker, {.add_special_tokens = false});
    if (!tokens.ok() || tokens->size() != 1 ||
        tokens->front() >= model->vocab_size) {
      if (marker == kHarmonyConstrain) continue;
      return false;
    }
    const bool last = marker == kHarmonyReturn || marker == kHarmonyCall;
    (last ? ends : markers).push_back(tokens->front());
  }
  tokenizer->MakeMarkers(markers);
  for (const TokenId end : ends) {
    if (std::count(model->eos_token_ids.begin(), model->eos_token_ids.end(),
                   end) == 0) {
      model->eos_token_ids.push_back(end);
    }
  }
  return true;
}

// How answers are to be read.
void FindWriting(absl::string_view chat_template, Tokenizer* tokenizer,
                 ServedModel* model) {
  if (WritesHarmony(chat_template) && ShowHarmonyMarkers(tokenizer, model)) {
    model->harmony = model->reasoning = true;
    model->tool_calls = ToolCallFormat::kHarmony;
    return;
  }
  model->tool_calls = FindToolCallFormat(chat_template);
  model->reasoning =
      WritesReasoning(chat_template) && HasThinkMarkers(*tokenizer);
}

// A model without a template, or with one that cannot be read, serves
// everything but conversations.
void ReadChatTemplate(Tokenizer* tokenizer, ServedModel* model) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> chat_template =
      LoadChatTemplate(*tokenizer);
  if (chat_template.ok()) {
    model->chat_template = *std::move(chat_template);
    // The template for messages with tools, where there is one.
    const auto& source = tokenizer->tool_use_template().has_value()
                             ? tokenizer->tool_use_template()
                             : tokenizer->chat_template();
    if (source.has_value()) FindWriting(*source, tokenizer, model);
    return;
  }
  model->why_no_chat = std::string(chat_template.status().message());
  LOG_IF(WARNING, !absl::IsNotFound(chat_template.status()))
      << "no conversations with this model: " << model->why_no_chat;
}

}  // namespace

absl::StatusOr<ServedModel> LoadServedModel(const std::string& model_dir,
                                            const std::string& served_name) {
  ServedModel model;
  std::unique_ptr<Tokenizer> tokenizer;
  model.name = served_name.empty() ? ModelName(model_dir) : served_name;
  if (gguf::IsGgufFile(model_dir)) {
    BATON_RETURN_IF_ERROR(ReadGguf(model_dir, &model, &tokenizer));
    ReadChatTemplate(tokenizer.get(), &model);
    model.tokenizer = std::move(tokenizer);
    return model;
  }
  std::error_code error;
  if (!std::filesystem::is_directory(model_dir, error)) {
    return absl::NotFoundError(
        absl::StrCat(model_dir, ": no such model directory or GGUF file"));
  }

  const std::string config_file = absl::StrCat(model_dir, "/config.json");
  BATON_ASSIGN_OR_RETURN(json whole, ReadJsonFile(config_file));
  const json config = TextModelJson(std::move(whole));
  BATON_RETURN_IF_ERROR(ReadConfig(JsonNode(&config, config_file), &model));

  const std::string generation_file =
      absl::StrCat(model_dir, "/generation_config.json");
  if (std::filesystem::exists(generation_file, error)) {
    BATON_ASSIGN_OR_RETURN(const json generation,
                           ReadJsonFile(generation_file));
    const JsonNode root(&generation, generation_file);
    BATON_ASSIGN_OR_RETURN(model.eos_token_ids,
                           TokenList(root, "eos_token_id", model.vocab_size,
                                     std::move(model.eos_token_ids)));
    BATON_ASSIGN_OR_RETURN(model.default_sampling, ReadSampling(root));
  }
  BATON_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(model_dir));
  ReadChatTemplate(tokenizer.get(), &model);
  model.tokenizer = std::move(tokenizer);
  return model;
}

}  // namespace baton::router
