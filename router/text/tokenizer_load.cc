// How a Tokenizer is read from a model directory or a GGUF file.

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/text/gguf_tokenizer.h"
#include "router/text/tiktoken_tokenizer.h"
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

// The template called `name`, of several; nothing where there is none.
absl::StatusOr<std::optional<std::string>> TemplateCalled(
    const std::vector<JsonNode>& named, absl::string_view name) {
  for (const JsonNode& each : named) {
    BATON_ASSIGN_OR_RETURN(const std::string its_name, each.String("name"));
    if (its_name != name) continue;
    BATON_ASSIGN_OR_RETURN(std::string text, each.String("template"));
    return std::optional<std::string>(std::move(text));
  }
  return std::optional<std::string>();
}

// The special tokens that templates know by name, and the keys of a GGUF file
// that name the same.
struct SpecialToken {
  absl::string_view name;
  absl::string_view gguf_key;
};
constexpr SpecialToken kSpecialTokens[] = {
    {"bos_token", "tokenizer.ggml.bos_token_id"},
    {"eos_token", "tokenizer.ggml.eos_token_id"},
    {"unk_token", "tokenizer.ggml.unknown_token_id"},
    {"sep_token", "tokenizer.ggml.seperator_token_id"},
    {"pad_token", "tokenizer.ggml.padding_token_id"},
    {"cls_token", "tokenizer.ggml.cls_token_id"},
    {"mask_token", "tokenizer.ggml.mask_token_id"},
};

// The text of a file; nothing where there is none.
absl::StatusOr<std::optional<std::string>> ReadTemplate(
    const std::string& path) {
  absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxTemplateBytes);
  if (text.ok()) return std::optional<std::string>(*std::move(text));
  if (absl::IsNotFound(text.status())) return std::optional<std::string>();
  return text.status();
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
  std::string path = absl::StrCat(model, "/tokenizer.json");
  absl::StatusOr<nlohmann::json> document = ReadJsonFile(path);
  if (absl::IsNotFound(document.status())) {
    absl::StatusOr<nlohmann::json> other = TiktokenTokenizerJson(model);
    // Without either, the usual one is what is missing.
    if (!absl::IsNotFound(other.status())) {
      document = std::move(other);
      path = absl::StrCat(model, "/tiktoken.model");
    }
  }
  BATON_RETURN_IF_ERROR(document.status());
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                         FromJson(JsonNode(&*document, path)));
  BATON_RETURN_IF_ERROR(tokenizer->ReadConfig(model));
  return tokenizer;
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromText(
    absl::string_view json, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document, ParseJson(json, name));
  return FromJson(JsonNode(&document, name));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::LoadGguf(
    const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const auto file, gguf::GgufFile::Open(path));
  BATON_ASSIGN_OR_RETURN(const nlohmann::json document,
                         GgufTokenizerJson(*file));
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                         FromJson(JsonNode(&document, path)));
  BATON_RETURN_IF_ERROR(tokenizer->ReadGgufSettings(*file));
  return tokenizer;
}

absl::Status Tokenizer::ReadGgufSettings(const gguf::GgufFile& file) {
  for (const SpecialToken& token : kSpecialTokens) {
    const bool is_bos = token.name == "bos_token";
    const bool is_eos = token.name == "eos_token";
    const absl::StatusOr<std::optional<TokenId>> read =
        TokenAt(file, token.gguf_key, *this);
    // Files of good models name paddings that are not there (-1): only the
    // texts of templates are lost with those.
    LOG_IF(WARNING, !read.ok() && !is_bos && !is_eos)
        << "no " << token.name << ": " << read.status();
    if (!read.ok() && (is_bos || is_eos)) return read.status();
    const std::optional<TokenId> id =
        read.ok() ? *read : std::optional<TokenId>();
    if (!id.has_value()) continue;
    if (is_bos) bos_id_ = id;
    if (is_eos) eos_id_ = id;
    if (const std::string* const text = SpellingOf(*id)) {
      special_token_texts_.emplace_back(token.name, *text);
    }
  }
  constexpr absl::string_view kTemplate = "tokenizer.chat_template";
  if (file.Has(kTemplate)) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text,
                           file.String(kTemplate));
    chat_template_ = std::string(text);
  }
  constexpr absl::string_view kToolUse = "tokenizer.chat_template.tool_use";
  if (chat_template_.has_value() && file.Has(kToolUse)) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text, file.String(kToolUse));
    tool_use_template_ = std::string(text);
  }
  return absl::OkStatus();
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
    BATON_RETURN_IF_ERROR(ReadConfigFile(JsonNode(&*document, path)));
  } else if (!absl::IsNotFound(document.status())) {
    return document.status();
  }
  return ReadTemplateFiles(model_dir);
}

absl::Status Tokenizer::ReadConfigFile(const JsonNode& config) {
  BATON_ASSIGN_OR_RETURN(bos_id_, NamedToken(config, "bos_token", *this));
  BATON_ASSIGN_OR_RETURN(eos_id_, NamedToken(config, "eos_token", *this));
  // To this class tokenizer.json does not say all: DeepSeek's has no template.
  BATON_ASSIGN_OR_RETURN(const std::string tokenizer_class,
                         config.String("tokenizer_class", ""));
  BATON_ASSIGN_OR_RETURN(const bool adds_bos,
                         config.Bool("add_bos_token", false));
  if (absl::StartsWith(tokenizer_class, "LlamaTokenizer") && adds_bos &&
      bos_id_.has_value() && !post_processor_.AddsTokens()) {
    post_processor_.AddBefore(*bos_id_);
  }
  for (const SpecialToken& token : kSpecialTokens) {
    if (!config.Has(token.name)) continue;
    BATON_ASSIGN_OR_RETURN(const JsonNode node, config.Field(token.name));
    BATON_ASSIGN_OR_RETURN(std::string text, TokenContent(node));
    special_token_texts_.emplace_back(token.name, std::move(text));
  }
  if (!config.Has("chat_template")) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const JsonNode node, config.Field("chat_template"));
  if (node.value().is_string()) {
    BATON_ASSIGN_OR_RETURN(chat_template_, node.AsString());
    return absl::OkStatus();
  }
  // Several, of which "default" is the one, or else the first.
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> named, node.Elements());
  if (named.empty()) return node.Invalid("has no template");
  BATON_ASSIGN_OR_RETURN(chat_template_, TemplateCalled(named, "default"));
  BATON_ASSIGN_OR_RETURN(tool_use_template_, TemplateCalled(named, "tool_use"));
  if (!chat_template_.has_value()) {
    BATON_ASSIGN_OR_RETURN(chat_template_, named.front().String("template"));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::ReadTemplateFiles(const std::string& model_dir) {
  // Newer models keep the templates in files of their own, which then hold.
  BATON_ASSIGN_OR_RETURN(
      std::optional<std::string> own,
      ReadTemplate(absl::StrCat(model_dir, "/chat_template.jinja")));
  if (!own.has_value()) return absl::OkStatus();
  chat_template_ = std::move(own);
  BATON_ASSIGN_OR_RETURN(
      tool_use_template_,
      ReadTemplate(absl::StrCat(model_dir,
                                "/additional_chat_templates/tool_use.jinja")));
  return absl::OkStatus();
}

}  // namespace baton::router
