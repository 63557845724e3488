#include "router/text/post_processor.h"

#include <string>
#include <utility>

#include "common/status_macros.h"
#include "router/text/bpe_model.h"

namespace baton::router {

absl::StatusOr<PostProcessor> PostProcessor::FromJson(const JsonNode& node) {
  PostProcessor processor;
  BATON_RETURN_IF_ERROR(processor.Add(node));
  return processor;
}

absl::Status PostProcessor::Add(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::string type, node.String("type"));
  if (type == "ByteLevel") return absl::OkStatus();
  if (type == "TemplateProcessing") {
    BATON_ASSIGN_OR_RETURN(templates_.emplace_back(), TemplateFromJson(node));
    return absl::OkStatus();
  }
  if (type != "Sequence") return node.Unsupported("type");
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> processors,
                         node.Array("processors"));
  for (const JsonNode& processor : processors) {
    BATON_RETURN_IF_ERROR(Add(processor));
  }
  return absl::OkStatus();
}

absl::StatusOr<PostProcessor::Template> PostProcessor::TemplateFromJson(
    const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> single,
                         node.Array("single"));
  Template pieces;
  for (const JsonNode& entry : single) {
    if (entry.Has("Sequence")) {
      BATON_ASSIGN_OR_RETURN(const JsonNode text, entry.Field("Sequence"));
      BATON_ASSIGN_OR_RETURN(const std::string name, text.String("id"));
      if (name != "A") return text.Unsupported("id");
      pieces.push_back({/*is_text=*/true, {}});
      continue;
    }
    BATON_ASSIGN_OR_RETURN(const JsonNode special, entry.Field("SpecialToken"));
    BATON_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    BATON_ASSIGN_OR_RETURN(const JsonNode table, node.Field("special_tokens"));
    BATON_ASSIGN_OR_RETURN(const JsonNode token, table.Field(name));
    BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> ids, token.Array("ids"));
    Piece piece{/*is_text=*/false, {}};
    for (const JsonNode& id : ids) {
      BATON_ASSIGN_OR_RETURN(const int64_t value,
                             id.AsCount(kMaxVocabularySize - 1));
      piece.ids.push_back(static_cast<TokenId>(value));
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

bool PostProcessor::AddsTokens() const {
  for (const Template& pieces : templates_) {
    for (const Piece& piece : pieces) {
      if (!piece.is_text) return true;
    }
  }
  return false;
}

void PostProcessor::AddBefore(TokenId token) {
  templates_.push_back({{/*is_text=*/false, {token}}, {/*is_text=*/true, {}}});
}

std::vector<TokenId> PostProcessor::Apply(std::vector<TokenId> ids,
                                          bool add_special_tokens) const {
  for (const Template& pieces : templates_) {
    std::vector<TokenId> out;
    out.reserve(ids.size() + pieces.size());
    for (const Piece& piece : pieces) {
      if (!piece.is_text && !add_special_tokens) continue;
      const std::vector<TokenId>& from = piece.is_text ? ids : piece.ids;
      out.insert(out.end(), from.begin(), from.end());
    }
    ids = std::move(out);
  }
  return ids;
}

}  // namespace baton::router
