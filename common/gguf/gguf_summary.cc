#include "common/gguf/gguf_summary.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "common/stretched_context.h"

namespace baton::gguf {
namespace {

// Far beyond any model: as engine/model_limits.h has them.
constexpr int64_t kMaxLayers = 1 << 12;
constexpr int64_t kMaxVocabSize = 1 << 22;
constexpr int64_t kMaxExperts = 1 << 10;

constexpr absl::string_view kEmbedding = "token_embd.weight";
constexpr absl::string_view kEndTokens[] = {
    "<|eot_id|>",    "<|eom_id|>", "<|im_end|>", "<|end_of_text|>",
    "<|endoftext|>", "<|return|>", "<|call|>"};
// Of Phi's; gpt-oss ends a message so, not an answer.
constexpr absl::string_view kPhiEndToken = "<|end|>";
constexpr absl::string_view kGemmaEndToken = "<end_of_turn>";
constexpr int64_t kControlToken = 3;

absl::Status ReadArchitecture(const GgufFile& file, Summary& out) {
  constexpr absl::string_view kKey = "general.architecture";
  BATON_ASSIGN_OR_RETURN(const absl::string_view name, file.String(kKey));
  out.architecture = std::string(name);
  if (name == "llama") {
    // Mixtral's files say so, too.
    constexpr absl::string_view kExperts = "llama.expert_count";
    BATON_ASSIGN_OR_RETURN(const int64_t experts,
                           file.IntegerOr(kExperts, 0, 0, kMaxExperts));
    out.model_class = experts > 0 ? "MixtralForCausalLM" : "LlamaForCausalLM";
  } else if (name == "qwen2") {
    out.model_class = "Qwen2ForCausalLM";
  } else if (name == "qwen3") {
    out.model_class = "Qwen3ForCausalLM";
  } else if (name == "qwen3moe") {
    out.model_class = "Qwen3MoeForCausalLM";
  } else if (name == "phi3") {
    out.model_class = "Phi3ForCausalLM";
  } else if (name == "smollm3") {
    out.model_class = "SmolLM3ForCausalLM";
  } else if (name == "glm4moe") {
    out.model_class = "Glm4MoeForCausalLM";
  } else if (name == "gemma3") {
    out.model_class = "Gemma3ForCausalLM";
  } else if (name == "deepseek2") {
    // V2, V3, and others alike: they differ in how experts are scored.
    constexpr absl::string_view kGating = "deepseek2.expert_gating_func";
    constexpr int64_t kSigmoid = 2;
    BATON_ASSIGN_OR_RETURN(const int64_t gating,
                           file.IntegerOr(kGating, 0, 0, 1 << 10));
    out.model_class =
        gating == kSigmoid ? "DeepseekV3ForCausalLM" : "DeepseekV2ForCausalLM";
  } else if (name == "gpt-oss") {
    out.model_class = "GptOssForCausalLM";
  } else {
    return absl::UnimplementedError(absl::StrCat(
        file.path(), ": ", kKey, " is ", Quoted(name),
        "; Baton knows llama, qwen2, qwen3, qwen3moe, phi3, smollm3, gemma3, "
        "glm4moe, gpt-oss and deepseek2"));
  }
  return absl::OkStatus();
}

// Files count the layers that predict further tokens, which are the last ones.
absl::Status ReadNumLayers(const GgufFile& file, Summary& out) {
  BATON_ASSIGN_OR_RETURN(
      const int64_t blocks,
      file.Integer(absl::StrCat(out.architecture, ".block_count"), 1,
                   kMaxLayers));
  BATON_ASSIGN_OR_RETURN(
      const int64_t further,
      file.IntegerOr(absl::StrCat(out.architecture, ".nextn_predict_layers"), 0,
                     0, blocks - 1));
  out.num_layers = static_cast<int32_t>(blocks - further);
  return absl::OkStatus();
}

// Not all files have the key vocab_size, and the matrix is what counts.
absl::Status ReadVocabSize(const GgufFile& file, Summary& out) {
  const Tensor* const embedding = file.FindTensor(kEmbedding);
  if (embedding == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(file.path(), ": tensor \"", kEmbedding, "\" is missing"));
  }
  const std::vector<int64_t>& shape = embedding->shape;
  if (shape.size() != 2 || shape[0] < 1 || shape[0] > kMaxVocabSize) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor \"", kEmbedding, "\" has shape [",
        absl::StrJoin(shape, ", "), "], it must have a row for each token"));
  }
  out.vocab_size = static_cast<int32_t>(shape[0]);
  return absl::OkStatus();
}

void AddEos(int64_t token, Summary& out) {
  const auto id = static_cast<TokenId>(token);
  if (std::find(out.eos.begin(), out.eos.end(), id) == out.eos.end()) {
    out.eos.push_back(id);
  }
}

absl::Status ReadSpecialTokens(const GgufFile& file, Summary& out) {
  const int64_t last = out.vocab_size - 1;
  constexpr absl::string_view kBos = "tokenizer.ggml.bos_token_id";
  if (file.Has(kBos)) {
    BATON_ASSIGN_OR_RETURN(const int64_t bos, file.Integer(kBos, 0, last));
    out.bos = static_cast<TokenId>(bos);
  }
  for (const absl::string_view key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id"}) {
    if (!file.Has(key)) continue;
    BATON_ASSIGN_OR_RETURN(const int64_t eos, file.Integer(key, 0, last));
    AddEos(eos, out);
  }
  constexpr absl::string_view kTokens = "tokenizer.ggml.tokens";
  constexpr absl::string_view kTypes = "tokenizer.ggml.token_type";
  if (!file.Has(kTokens) || !file.Has(kTypes)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto tokens, file.Strings(kTokens));
  BATON_ASSIGN_OR_RETURN(const auto types, file.Integers(kTypes));
  const size_t count = std::min(
      {tokens.size(), types.size(), static_cast<size_t>(out.vocab_size)});
  for (size_t i = 0; i < count; ++i) {
    if (types[i] != kControlToken) continue;
    if (std::find(std::begin(kEndTokens), std::end(kEndTokens), tokens[i]) !=
            std::end(kEndTokens) ||
        (out.architecture == "phi3" && tokens[i] == kPhiEndToken) ||
        (out.architecture == "gemma3" && tokens[i] == kGemmaEndToken)) {
      AddEos(static_cast<int64_t>(i), out);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadContext(const GgufFile& file, Summary& out) {
  const auto key = [&](absl::string_view name) {
    return absl::StrCat(out.architecture, ".", name);
  };
  BATON_ASSIGN_OR_RETURN(out.context_length,
                         file.Integer(key("context_length"), 1, kMaxContext));
  const std::string type_key = key("rope.scaling.type");
  if (!file.Has(type_key)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const absl::string_view type, file.String(type_key));
  if (type != "yarn") return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const double factor,
                         file.Number(key("rope.scaling.factor"), 1.0, 1e6));
  int64_t original = out.context_length;
  const std::string original_key = key("rope.scaling.original_context_length");
  if (file.Has(original_key)) {
    BATON_ASSIGN_OR_RETURN(original,
                           file.Integer(original_key, 1, kMaxContext));
  }
  out.context_length = StretchedContext(out.context_length,
                                        static_cast<double>(original), factor);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Summary> ReadSummary(const GgufFile& file) {
  Summary out;
  BATON_RETURN_IF_ERROR(ReadArchitecture(file, out));
  BATON_RETURN_IF_ERROR(ReadNumLayers(file, out));
  BATON_RETURN_IF_ERROR(ReadContext(file, out));
  BATON_RETURN_IF_ERROR(ReadVocabSize(file, out));
  BATON_RETURN_IF_ERROR(ReadSpecialTokens(file, out));
  return out;
}

}  // namespace baton::gguf
