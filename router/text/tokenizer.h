// From text to token ids and back, exactly as Hugging Face's `tokenizers` does
// it for the same tokenizer.json; or for the one that a GGUF file or
// tiktoken.model stands for.
//
// Loaded once per model. Never renders chat templates, never truncates or pads
// (the file's settings for those are ignored: a prompt that is too long is the
// router's affair), never throws.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "router/text/added_tokens.h"
#include "router/text/bpe_model.h"
#include "router/text/decoder.h"
#include "router/text/normalizer.h"
#include "router/text/post_processor.h"
#include "router/text/pre_tokenizer.h"

namespace baton::gguf {
class GgufFile;
}  // namespace baton::gguf

namespace baton::router {

struct EncodeOptions {
  // Whether the post-processor adds what it adds around a text: a beginning of
  // sequence, as a rule. False for rendered chat templates, which have it.
  bool add_special_tokens = true;
  // Whether a special token's text, such as "<|im_end|>", becomes that token.
  // False for text from outside that must not speak for the template.
  bool parse_special = true;
};

// Immutable; all functions may be called from any thread.
class Tokenizer final {
 public:
  // Loads `model`/tokenizer.json (or, where there is none, tiktoken.model) and,
  // where they exist, tokenizer_config.json and chat_template.jinja; or, where
  // `model` is a GGUF file, its metadata.
  //
  // NotFound without a tokenizer; InvalidArgument for a broken file;
  // Unimplemented, naming the field, for what Baton does not know.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& model);

  // From the text of a tokenizer.json alone; `name` is what errors call it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromText(
      absl::string_view json, const std::string& name);

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of `text`.
  //
  // Text that is not valid UTF-8: a byte-level tokenizer encodes the ill-formed
  // bytes as they are (they come back from TokenBytes, not from Decode, which
  // speaks UTF-8); any other encodes U+FFFD in their place.
  //
  // InvalidArgument for more than 256 MiB of text; ResourceExhausted where one
  // of the tokenizer's regular expressions backtracks beyond its bound.
  absl::StatusOr<std::vector<TokenId>> Encode(
      absl::string_view text, const EncodeOptions& options = {}) const;

  // The text of a whole sequence, always valid UTF-8. InvalidArgument for an id
  // outside [0, vocab_size()); ids in it without a token are nothing.
  absl::StatusOr<std::string> Decode(absl::Span<const TokenId> ids,
                                     bool skip_special_tokens = false) const;

  // The bytes that the token stands for in the middle of a text: not always
  // valid UTF-8, and before any stripping at the start of a sequence. Empty for
  // an id without a token.
  std::string TokenBytes(TokenId id) const;

  // One more than the largest id. The model's own vocabulary may be larger
  // (padded).
  int64_t vocab_size() const { return vocab_size_; }

  // As tokenizer_config.json, or the GGUF file, names them.
  std::optional<TokenId> bos_id() const { return bos_id_; }
  std::optional<TokenId> eos_id() const { return eos_id_; }

  // Whether skip_special_tokens leaves it out.
  bool IsSpecial(TokenId id) const;

  // These tokens mark parts of an answer that whoever reads its text has to
  // tell apart: they are not special, whatever the file says of them, but for
  // parse_special. Before it is shared.
  void MakeMarkers(absl::Span<const TokenId> ids);
  bool IsMarker(TokenId id) const { return markers_.contains(id); }
  bool has_markers() const { return !markers_.empty(); }

  // The id of a token's own spelling in the vocabulary, such as "<|im_end|>".
  std::optional<TokenId> IdOf(absl::string_view token) const;

  // The model's chat template (Jinja source), not rendered; and the one for
  // messages with tools, where the model has another for them.
  const std::optional<std::string>& chat_template() const {
    return chat_template_;
  }
  const std::optional<std::string>& tool_use_template() const {
    return tool_use_template_;
  }

  // The special tokens that the model's files name, for chat templates:
  // ("bos_token", "<s>"), ("eos_token", "</s>"), ...
  using NamedText = std::pair<std::string, std::string>;
  const std::vector<NamedText>& special_token_texts() const {
    return special_token_texts_;
  }

 private:
  friend class Detokenizer;

  explicit Tokenizer(BpeModel model) : model_(std::move(model)) {}

  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      const JsonNode& root);
  absl::Status ReadConfig(const std::string& model_dir);
  absl::Status ReadConfigFile(const JsonNode& config);
  absl::Status ReadTemplateFiles(const std::string& model_dir);
  absl::Status ReadGgufSettings(const gguf::GgufFile& file);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGguf(
      const std::string& path);

  // The token's spelling in the vocabulary, or null.
  const std::string* SpellingOf(TokenId id) const;

  // Appends the ids of valid UTF-8; `at_start` where it begins the input.
  absl::Status EncodeValid(absl::string_view text, bool at_start,
                           bool parse_special, std::vector<TokenId>* ids) const;
  absl::Status EncodeNormalized(NormalizedText text, bool parse_special,
                                std::vector<TokenId>* ids) const;
  absl::Status EncodePieces(NormalizedText text,
                            std::vector<TokenId>* ids) const;
  // Appends the ids of bytes that are not UTF-8. REQUIRES: byte-level.
  absl::Status EncodeBytes(absl::string_view bytes,
                           std::vector<TokenId>* ids) const;

  BpeModel model_;
  std::unique_ptr<const Normalizer> normalizer_;       // may be null
  std::unique_ptr<const PreTokenizer> pre_tokenizer_;  // may be null
  AddedTokens added_tokens_;
  absl::flat_hash_set<TokenId> markers_;
  PostProcessor post_processor_;
  Decoder decoder_;
  int64_t vocab_size_ = 0;
  std::optional<TokenId> bos_id_;
  std::optional<TokenId> eos_id_;
  std::optional<std::string> chat_template_;
  std::optional<std::string> tool_use_template_;
  std::vector<NamedText> special_token_texts_;
};

}  // namespace baton::router
