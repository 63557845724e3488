// The "post_processor" of tokenizer.json, for one sequence: which special
// tokens go around the text's ids.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "router/text/json_node.h"

namespace baton::router {

// Immutable; any thread.
class PostProcessor final {
 public:
  // Adds nothing.
  PostProcessor() = default;

  // TemplateProcessing, ByteLevel (which changes offsets only) or a Sequence
  // of those. Unimplemented for others.
  static absl::StatusOr<PostProcessor> FromJson(const JsonNode& node);

  // Whether special tokens are added at all.
  bool AddsTokens() const;
  // Adds one before the text, as a template does.
  void AddBefore(TokenId token);

  // The ids with what the templates add; without it, where the templates only
  // repeat or drop the text, as they say.
  std::vector<TokenId> Apply(std::vector<TokenId> ids,
                             bool add_special_tokens) const;

 private:
  // The text's ids, or special tokens.
  struct Piece {
    bool is_text;
    std::vector<TokenId> ids;
  };
  using Template = std::vector<Piece>;

  absl::Status Add(const JsonNode& node);
  static absl::StatusOr<Template> TemplateFromJson(const JsonNode& node);

  std::vector<Template> templates_;
};

}  // namespace baton::router
