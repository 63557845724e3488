#include "router/text/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/unicode.h"

namespace baton::router {
namespace {

bool StartsWithWord(absl::string_view text) {
  return !text.empty() && IsWordCharacter(NextUtf8(text, 0).code_point);
}

// The beginning of the last character of `text`, which is valid UTF-8.
size_t LastCharacter(absl::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool EndsWithWord(absl::string_view text) {
  if (text.empty()) return false;
  return IsWordCharacter(NextUtf8(text, LastCharacter(text)).code_point);
}

// How much of the end of text[0, end) is white space, in bytes, not looking
// before `from`.
size_t TrailingWhitespace(absl::string_view text, size_t from, size_t end) {
  size_t at = end;
  while (at > from) {
    const size_t last = LastCharacter(text.substr(0, at));
    if (last < from || !IsWhitespace(NextUtf8(text, last).code_point)) break;
    at = last;
  }
  return end - at;
}

size_t LeadingWhitespace(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Utf8Step step = NextUtf8(text, at);
    if (!IsWhitespace(step.code_point)) break;
    at += step.size;
  }
  return at;
}

}  // namespace

void StringTrie::Insert(absl::string_view key, int32_t value) {
  if (key.empty()) return;
  starts_[static_cast<uint8_t>(key[0])] = true;
  int32_t node = 0;
  for (const char c : key) {
    const uint64_t edge =
        static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
    const auto [it, inserted] =
        children_.try_emplace(edge, static_cast<int32_t>(values_.size()));
    if (inserted) values_.push_back(-1);
    node = it->second;
  }
  if (values_[node] < 0) values_[node] = value;
}

std::optional<StringTrie::Match> StringTrie::LongestAt(absl::string_view text,
                                                       size_t pos) const {
  if (!starts_[static_cast<uint8_t>(text[pos])]) return std::nullopt;
  std::optional<Match> longest;
  int32_t node = 0;
  for (size_t at = pos; at < text.size(); ++at) {
    const auto it = children_.find(static_cast<uint64_t>(node) << 8 |
                                   static_cast<uint8_t>(text[at]));
    if (it == children_.end()) break;
    node = it->second;
    if (values_[node] >= 0) longest = Match{values_[node], at + 1 - pos};
  }
  return longest;
}

absl::StatusOr<AddedTokens> AddedTokens::FromJson(
    const JsonNode& root, const BpeModel& model, const Normalizer* normalizer) {
  AddedTokens added;
  if (!root.Has("added_tokens")) return added;
  BATON_ASSIGN_OR_RETURN(const std::vector<JsonNode> elements,
                         root.Array("added_tokens"));
  for (const JsonNode& element : elements) {
    AddedToken token;
    BATON_ASSIGN_OR_RETURN(token.content, element.String("content"));
    BATON_ASSIGN_OR_RETURN(const int64_t id,
                           element.Count("id", kMaxVocabularySize - 1));
    token.id = static_cast<TokenId>(id);
    BATON_ASSIGN_OR_RETURN(token.single_word,
                           element.Bool("single_word", false));
    BATON_ASSIGN_OR_RETURN(token.strip_left, element.Bool("lstrip", false));
    BATON_ASSIGN_OR_RETURN(token.strip_right, element.Bool("rstrip", false));
    BATON_ASSIGN_OR_RETURN(token.special, element.Bool("special", false));
    BATON_ASSIGN_OR_RETURN(token.normalized,
                           element.Bool("normalized", !token.special));
    BATON_RETURN_IF_ERROR(added.Add(std::move(token), model));
  }
  BATON_RETURN_IF_ERROR(added.BuildTries(normalizer));
  return added;
}

absl::Status AddedTokens::Add(AddedToken token, const BpeModel& model) {
  if (token.content.empty()) return absl::OkStatus();
  const auto known = index_by_content_.find(token.content);
  if (known != index_by_content_.end()) {
    // Listed again: the last description holds, but special stays special.
    AddedToken& earlier = tokens_[known->second];
    token.id = earlier.id;
    token.special = token.special || earlier.special;
    earlier = std::move(token);
    return absl::OkStatus();
  }
  const TokenId next_id =
      static_cast<TokenId>(std::max(id_limit_, model.entry_count()));
  const TokenId id = model.IdOf(token.content).value_or(next_id);
  if (id >= kMaxVocabularySize) {
    return absl::InvalidArgumentError("the tokenizer has too many tokens");
  }
  if (id != token.id) {
    LOG(WARNING) << "the tokenizer's added token \"" << token.content
                 << "\" has the id " << token.id << " in its file and gets "
                 << id;
  }
  token.id = id;
  id_limit_ = std::max<int64_t>(id_limit_, int64_t{id} + 1);
  const int32_t index = static_cast<int32_t>(tokens_.size());
  index_by_id_[id] = index;
  index_by_content_[token.content] = index;
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

absl::Status AddedTokens::BuildTries(const Normalizer* normalizer) {
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const int32_t index = static_cast<int32_t>(i);
    const AddedToken& token = tokens_[i];
    if (!token.normalized) {
      raw_trie_.Insert(token.content, index);
      continue;
    }
    NormalizedText pattern{token.content, /*at_start=*/false};
    if (normalizer != nullptr) {
      BATON_RETURN_IF_ERROR(normalizer->Apply(&pattern));
    }
    normalized_trie_.Insert(pattern.text, index);
  }
  return absl::OkStatus();
}

std::vector<AddedTokens::Part> AddedTokens::Split(absl::string_view text,
                                                  bool normalized,
                                                  bool skip_special) const {
  const StringTrie& trie = normalized ? normalized_trie_ : raw_trie_;
  std::vector<Part> parts;
  size_t covered = 0;
  size_t at = 0;
  while (at < text.size()) {
    const std::optional<StringTrie::Match> match = trie.LongestAt(text, at);
    if (!match.has_value()) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + match->size;
    at = end;
    const AddedToken& token = tokens_[match->value];
    if (skip_special && token.special) continue;
    if (token.single_word && (EndsWithWord(text.substr(0, begin)) ||
                              StartsWithWord(text.substr(end)))) {
      continue;
    }
    if (token.strip_left && begin > covered) {
      begin -= TrailingWhitespace(text, covered, begin);
    }
    if (token.strip_right) end += LeadingWhitespace(text.substr(end));
    if (covered < begin) parts.push_back({nullptr, covered, begin});
    parts.push_back({&token, begin, end});
    covered = end;
  }
  if (covered < text.size()) parts.push_back({nullptr, covered, text.size()});
  return parts;
}

const AddedToken* AddedTokens::Find(TokenId id) const {
  const auto it = index_by_id_.find(id);
  return it == index_by_id_.end() ? nullptr : &tokens_[it->second];
}

std::optional<TokenId> AddedTokens::IdOf(absl::string_view content) const {
  const auto it = index_by_content_.find(content);
  if (it == index_by_content_.end()) return std::nullopt;
  return tokens_[it->second].id;
}

}  // namespace baton::router
