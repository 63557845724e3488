// How a Tokenizer is read from a model directory or a GGUF file.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/status_macros.h"
#include "router/text/gguf_tokenizer.h"
#include "router/text/tokenizer.h"

namespace baton::router {
namespace {

constexpr size_t kMaxTemplateBytes = size_t{1} << 20;

// A token as tokenizer_config.json names it: its content, or an object that
// has it.
absl::StatusOr<std::string> TokenContent(const JsonNode& node) {
  if (node.value().is_string()) return node.AsString();
  return node.String("content");
}

// The template, or the one called "default" (else the first) of several.
absl::StatusOr<std::string> ChatTemplate(const JsonNode& node) {
  if (node.value().is_string()) return node.AsString();
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> named, node.Elements());
  if (named.empty()) return node.Invalid("has no template");
  for (const JsonNode& each : named) {
    BATON_ASSIGN_OR_RETURN(const std::string name, each.String("name"));
    if (name == "default") return each.String("template");
  }
  return named.front().String("template");
}

absl::StatusOr<std::optional<TokenId>> NamedToken(const JsonNode& config,
                                                  absl::string_view field,
                                                  const Tokenizer& tokenizer) {
  if (!config.Has(field)) return std::optional<TokenId>();
  BATON_ASSIGN_OR_RETURN(const JsonNode node, config.Field(field));
  BATON_ASSIGN_OR_RETURN(const std::string content, TokenContent(node));
  const std::optional<TokenId> id = tokenizer.IdOf(content);
  if (!id.has_value()) {
    return node.Invalid(
        absl::StrCat("is \"", content, "\", which is not in the vocabulary"));
  }
  return id;
}

// The token that a key of a GGUF file names.
absl::StatusOr<std::optional<TokenId>> TokenAt(const gguf::GgufFile& file,
                                               absl::string_view key,
                                               const Tokenizer& tokenizer) {
  if (!file.Has(key)) return std::optional<TokenId>();
  BATON_ASSIGN_OR_RETURN(const int64_t id,
                         file.Integer(key, 0, tokenizer.vocab_size() - 1));
  return std::optional<TokenId>(static_cast<TokenId>(id));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    const std::string& model) {
  if (gguf::IsGgufFile(model)) return LoadGguf(model);
  const std::string path = absl::StrCat(model, "/tokenizer.json");
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document, ReadJsonFile(path));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                         FromJson(JsonNode(&document, path)));
  BATON_RETURN_IF_ERROR(tokenizer->ReadConfig(model));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadGguf(
    const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, gguf::GgufFile::Open(path));
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document,
                         GgufTokenizerJson(*file));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                         FromJson(JsonNode(&document, path)));
  BATON_ASSIGN_OR_RETURN(
      tokenizer->bos_id_,
      TokenAt(*file, "tokenizer.ggml.bos_token_id", *tokenizer));
  BATON_ASSIGN_OR_RETURN(
      tokenizer->eos_id_,
      TokenAt(*file, "tokenizer.ggml.eos_token_id", *tokenizer));
  constexpr absl::string_view kTemplate = "tokenizer.chat_template";
  if (file->Has(kTemplate)) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text,
                           file->String(kTemplate));
    tokenizer->chat_template_ = std::string(text);
  }
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    const JsonNode& root) {
  BATON_ASSIGN_OR_RETURN(const std::string version,
                         root.String("version", "1.0"));
  if (version != "1.0") return root.Unsupported("version");
  BATON_ASSIGN_OR_RETURN(const JsonNode model_node, root.Field("model"));
  BATON_ASSIGN_OR_RETURN(BpeModel model, BpeModel::FromJson(model_node));
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer(std::move(model)));
  if (root.Has("normalizer")) {
    BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field("normalizer"));
    BATON_ASSIGN_OR_RETURN(tokenizer->normalizer_, Normalizer::FromJson(node));
  }
  if (root.Has("pre_tokenizer")) {
    BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field("pre_tokenizer"));
    BATON_ASSIGN_OR_RETURN(tokenizer->pre_tokenizer_,
                           PreTokenizer::FromJson(node));
  }
  if (root.Has("post_processor")) {
    BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field("post_processor"));
    BATON_ASSIGN_OR_RETURN(tokenizer->post_processor_,
                           PostProcessor::FromJson(node));
  }
  if (root.Has("decoder")) {
    BATON_ASSIGN_OR_RETURN(const JsonNode node, root.Field("decoder"));
    BATON_ASSIGN_OR_RETURN(tokenizer->decoder_, Decoder::FromJson(node));
  }
  BATON_ASSIGN_OR_RETURN(tokenizer->added_tokens_,
                         AddedTokens::FromJson(root, tokenizer->model_,
                                               tokenizer->normalizer_.get()));
  tokenizer->vocab_size_ = std::max(tokenizer->model_.id_limit(),
                                    tokenizer->added_tokens_.id_limit());
  return tokenizer;
}

absl::Status Tokenizer::ReadConfig(const std::string& model_dir) {
  const std::string path = absl::StrCat(model_dir, "/tokenizer_config.json");
  const absl::StatusOr<nlohmann::json> document = ReadJsonFile(path);
  if (document.ok()) {
    const JsonNode config(&*document, path);
    BATON_ASSIGN_OR_RETURN(bos_id_, NamedToken(config, "bos_token", *this));
    BATON_ASSIGN_OR_RETURN(eos_id_, NamedToken(config, "eos_token", *this));
    if (config.Has("chat_template")) {
      BATON_ASSIGN_OR_RETURN(const JsonNode node,
                             config.Field("chat_template"));
      BATON_ASSIGN_OR_RETURN(chat_template_, ChatTemplate(node));
    }
  } else if (!absl::IsNotFound(document.status())) {
    return document.status();
  }
  // Newer models keep the template in a file of its own, which then holds.
  absl::StatusOr<std::string> own_file = ReadSmallFile(
      absl::StrCat(model_dir, "/chat_template.jinja"), kMaxTemplateBytes);
  if (own_file.ok()) {
    chat_template_ = *std::move(own_file);
  } else if (!absl::IsNotFound(own_file.status())) {
    return own_file.status();
  }
  return absl::OkStatus();
}

}  // namespace baton::router
