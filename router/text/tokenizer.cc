#include "router/text/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/byte_alphabet.h"
#include "router/text/detokenizer.h"

namespace baton::router {
namespace {

constexpr size_t kMaxTextBytes = size_t{256} << 20;

}  // namespace

absl::StatusOr<std::vector<TokenId>> Tokenizer::Encode(
    absl::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes, more than the ",
                     kMaxTextBytes, " that can be tokenized"));
  }
  const bool byte_level =
      pre_tokenizer_ != nullptr && pre_tokenizer_->IsByteLevel();
  std::string repaired;
  if (!byte_level && !IsValidUtf8(text)) {
    repaired = ReplaceIllFormedUtf8(text);
    text = repaired;
  }
  std::vector<TokenId> ids;
  for (size_t at = 0; at < text.size();) {
    const size_t valid = ValidUtf8Length(text, at);
    BATON_RETURN_IF_ERROR(EncodeValid(text.substr(at, valid), at == 0,
                                      options.parse_special, &ids));
    at += valid;
    const size_t broken = at;
    while (at < text.size()) {
      const Utf8Step step = NextUtf8(text, at);
      if (step.kind == Utf8Kind::kCharacter) break;
      at += step.size;
    }
    BATON_RETURN_IF_ERROR(EncodeBytes(text.substr(broken, at - broken), &ids));
  }
  return post_processor_.Apply(std::move(ids), options.add_special_tokens);
}

absl::Status Tokenizer::EncodeValid(absl::string_view text, bool at_start,
                                    bool parse_special,
                                    std::vector<TokenId>* ids) const {
  for (const AddedTokens::Part& part :
       added_tokens_.Split(text, /*normalized=*/false, !parse_special)) {
    if (part.token != nullptr) {
      ids->push_back(part.token->id);
      continue;
    }
    NormalizedText between{
        std::string(text.substr(part.begin, part.end - part.begin)),
        at_start && part.begin == 0};
    if (normalizer_ != nullptr) {
      BATON_RETURN_IF_ERROR(normalizer_->Apply(&between));
    }
    BATON_RETURN_IF_ERROR(
        EncodeNormalized(std::move(between), parse_special, ids));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeNormalized(NormalizedText text,
                                         bool parse_special,
                                         std::vector<TokenId>* ids) const {
  const std::vector<AddedTokens::Part> parts =
      added_tokens_.Split(text.text, /*normalized=*/true, !parse_special);
  if (parts.size() == 1 && parts[0].token == nullptr) {
    return EncodePieces(std::move(text), ids);
  }
  for (const AddedTokens::Part& part : parts) {
    if (part.token != nullptr) {
      ids->push_back(part.token->id);
      continue;
    }
    BATON_RETURN_IF_ERROR(
        EncodePieces({text.text.substr(part.begin, part.end - part.begin),
                      text.at_start && part.begin == 0},
                     ids));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodePieces(NormalizedText text,
                                     std::vector<TokenId>* ids) const {
  TextPieces pieces;
  pieces.pieces.push_back({0, text.text.size(), text.at_start});
  pieces.text = std::move(text.text);
  if (pre_tokenizer_ != nullptr) {
    BATON_RETURN_IF_ERROR(pre_tokenizer_->Apply(&pieces));
  }
  for (const TextPieces::Piece& piece : pieces.pieces) {
    BATON_RETURN_IF_ERROR(model_.Encode(pieces.View(piece), ids));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::EncodeBytes(absl::string_view bytes,
                                    std::vector<TokenId>* ids) const {
  std::string word;
  for (const char c : bytes) {
    word.append(ByteCharacter(static_cast<uint8_t>(c)));
  }
  return model_.Encode(word, ids);
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const TokenId> ids,
                                              bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, skip_special_tokens);
  std::string text;
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab_size_) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the token id ", id, " is outside the vocabulary of ", vocab_size_));
    }
    text.append(detokenizer.Push(id));
  }
  text.append(detokenizer.Finish());
  return text;
}

const std::string* Tokenizer::SpellingOf(TokenId id) const {
  const AddedToken* added = added_tokens_.Find(id);
  return added != nullptr ? &added->content : model_.TokenOf(id);
}

std::string Tokenizer::TokenBytes(TokenId id) const {
  const std::string* spelling = SpellingOf(id);
  return spelling == nullptr ? "" : decoder_.TokenBytes(*spelling);
}

bool Tokenizer::IsSpecial(TokenId id) const {
  const AddedToken* added = added_tokens_.Find(id);
  return added != nullptr && added->special && !IsMarker(id);
}

void Tokenizer::MakeMarkers(absl::Span<const TokenId> ids) {
  markers_.insert(ids.begin(), ids.end());
}

std::optional<TokenId> Tokenizer::IdOf(absl::string_view token) const {
  const std::optional<TokenId> added = added_tokens_.IdOf(token);
  return added.has_value() ? added : model_.IdOf(token);
}

}  // namespace baton::router
