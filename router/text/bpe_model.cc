#include "router/text/bpe_model.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/status_macros.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

// Up to this many symbols, scanning for the best pair beats a queue.
constexpr size_t kShortWord = 32;

constexpr TokenId kNone = -1;

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
         static_cast<uint32_t>(right);
}

// The last character of `left` and the first of `right`. REQUIRES: neither is
// empty.
uint64_t JointKey(absl::string_view left, absl::string_view right) {
  size_t last = left.size() - 1;
  while (last > 0 && (static_cast<uint8_t>(left[last]) & 0xC0) == 0x80) --last;
  return static_cast<uint64_t>(NextUtf8(left, last).code_point) << 32 |
         NextUtf8(right, 0).code_point;
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::FromJson(const JsonNode& node) {
  // Files from before 2022 name no type.
  BATON_ASSIGN_OR_RETURN(const std::string type, node.String("type", "BPE"));
  if (type != "BPE") return node.Unsupported("type");
  if (node.Has("dropout")) {
    const nlohmann::json& dropout = node.value()["dropout"];
    if (!dropout.is_number() || dropout.get<double>() != 0) {
      return node.Unsupported("dropout");
    }
  }
  BpeModel model;
  BATON_ASSIGN_OR_RETURN(model.unknown_token_, node.String("unk_token", ""));
  BATON_ASSIGN_OR_RETURN(model.continuing_subword_prefix_,
                         node.String("continuing_subword_prefix", ""));
  BATON_ASSIGN_OR_RETURN(model.end_of_word_suffix_,
                         node.String("end_of_word_suffix", ""));
  BATON_ASSIGN_OR_RETURN(model.fuse_unknown_, node.Bool("fuse_unk", false));
  BATON_ASSIGN_OR_RETURN(model.ignore_merges_,
                         node.Bool("ignore_merges", false));
  BATON_ASSIGN_OR_RETURN(const bool byte_fallback,
                         node.Bool("byte_fallback", false));
  BATON_RETURN_IF_ERROR(model.ReadVocabulary(node));
  BATON_RETURN_IF_ERROR(model.ReadMerges(node));
  if (byte_fallback) model.byte_tokens_.assign(256, kNone);
  model.BuildTables();
  return model;
}

absl::Status BpeModel::ReadVocabulary(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const JsonNode vocab_node, node.Field("vocab"));
  const nlohmann::json& vocab = vocab_node.value();
  if (!vocab.is_object()) return vocab_node.Invalid("is not an object");
  int64_t limit = 0;
  for (const auto& [token, value] : vocab.items()) {
    const std::optional<int64_t> id =
        WholeNumber(value, kMaxVocabularySize - 1);
    if (!id.has_value()) {
      return vocab_node.Invalid(
          absl::StrCat("has a bad id for the token \"", token,
                       "\": not a whole number below ", kMaxVocabularySize));
    }
    limit = std::max(limit, *id + 1);
  }
  tokens_.resize(limit);
  is_token_.resize(limit);
  ids_.reserve(vocab.size());
  for (const auto& [token, value] : vocab.items()) {
    const TokenId id = value.get<TokenId>();
    if (is_token_[id]) {
      return vocab_node.Invalid(absl::StrCat("gives two tokens the id ", id));
    }
    is_token_[id] = true;
    tokens_[id] = token;
    ids_.emplace(tokens_[id], id);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::ReadMerges(const JsonNode& node) {
  BATON_ASSIGN_OR_RETURN(const JsonNode merges_node, node.Field("merges"));
  const nlohmann::json& merges = merges_node.value();
  if (!merges.is_array()) return merges_node.Invalid("is not an array");
  merges_.reserve(merges.size());
  int32_t rank = 0;
  for (const nlohmann::json& merge : merges) {
    if (merge.is_string()) {
      const absl::string_view text = merge.get_ref<const std::string&>();
      if (absl::StartsWith(text, "#version")) continue;
      const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
      if (parts.size() != 2) {
        return merges_node.Invalid(
            absl::StrCat("has the entry \"", text, "\", which is not a pair"));
      }
      BATON_RETURN_IF_ERROR(AddMerge(merges_node, rank++, parts[0], parts[1]));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      BATON_RETURN_IF_ERROR(AddMerge(merges_node, rank++,
                                     merge[0].get_ref<const std::string&>(),
                                     merge[1].get_ref<const std::string&>()));
    } else {
      return merges_node.Invalid("has an entry that is not a pair of strings");
    }
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerge(const JsonNode& node, int32_t rank,
                                absl::string_view left,
                                absl::string_view right) {
  const auto unknown = [&](absl::string_view token) {
    return node.Invalid(absl::StrCat("joins \"", left, "\" and \"", right,
                                     "\", but \"", token,
                                     "\" is not in the vocabulary"));
  };
  const std::optional<TokenId> left_id = IdOf(left);
  if (!left_id.has_value()) return unknown(left);
  const std::optional<TokenId> right_id = IdOf(right);
  if (!right_id.has_value()) return unknown(right);
  if (right.size() < continuing_subword_prefix_.size()) {
    return node.Invalid(
        absl::StrCat("has \"", right, "\" without the subword prefix"));
  }
  const std::string joined =
      absl::StrCat(left, right.substr(continuing_subword_prefix_.size()));
  const std::optional<TokenId> joined_id = IdOf(joined);
  if (!joined_id.has_value()) return unknown(joined);
  if (!left.empty() && !right.empty()) joints_.insert(JointKey(left, right));
  // A pair that is listed twice keeps its last rank, as in Hugging Face's.
  merges_[PairKey(*left_id, *right_id)] = Merge{rank, *joined_id};
  return absl::OkStatus();
}

void BpeModel::BuildTables() {
  direct_.fill(kNone);
  std::string character;
  for (int code_point = 0; code_point < kDirectCharacters; ++code_point) {
    character.clear();
    AppendUtf8(static_cast<char32_t>(code_point), &character);
    direct_[code_point] = IdOf(character).value_or(kNone);
  }
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    byte_tokens_[byte] =
        IdOf(absl::StrFormat("<0x%02X>", byte)).value_or(kNone);
  }
}

std::optional<TokenId> BpeModel::IdOf(absl::string_view token) const {
  const auto it = ids_.find(token);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const std::string* BpeModel::TokenOf(TokenId id) const {
  if (id < 0 || id >= id_limit() || !is_token_[id]) return nullptr;
  return &tokens_[id];
}

const BpeModel::Merge* BpeModel::FindMerge(TokenId left, TokenId right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

absl::Status BpeModel::Encode(absl::string_view word,
                              std::vector<TokenId>* ids) const {
  if (word.empty()) return absl::OkStatus();
  if (ignore_merges_) {
    if (const std::optional<TokenId> id = IdOf(word)) {
      ids->push_back(*id);
      return absl::OkStatus();
    }
  }
  std::vector<TokenId> symbols;
  symbols.reserve(word.size());
  BATON_RETURN_IF_ERROR(AppendSymbols(word, &symbols));
  MergeWord(&symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  return absl::OkStatus();
}

void BpeModel::MergeWord(std::vector<TokenId>* symbols) const {
  if (symbols->size() <= kShortWord) {
    MergeShortWord(symbols);
    return;
  }
  // A stretch between joints that nothing spans is a word of its own.
  std::vector<TokenId> merged;
  std::vector<TokenId> stretch;
  for (size_t i = 0; i < symbols->size(); ++i) {
    stretch.push_back((*symbols)[i]);
    if (i + 1 < symbols->size() &&
        MayMergeAcross((*symbols)[i], (*symbols)[i + 1])) {
      continue;
    }
    if (stretch.size() <= kShortWord) {
      MergeShortWord(&stretch);
    } else {
      MergeLongWord(&stretch);
    }
    merged.insert(merged.end(), stretch.begin(), stretch.end());
    stretch.clear();
  }
  *symbols = std::move(merged);
}

bool BpeModel::MayMergeAcross(TokenId left, TokenId right) const {
  // With a prefix that merging takes away, spellings do not add up.
  if (!continuing_subword_prefix_.empty()) return true;
  return joints_.contains(JointKey(tokens_[left], tokens_[right]));
}

std::optional<TokenId> BpeModel::IdOfCharacter(absl::string_view character,
                                               char32_t code_point,
                                               bool is_first,
                                               bool is_last) const {
  const bool has_prefix = !is_first && !continuing_subword_prefix_.empty();
  const bool has_suffix = is_last && !end_of_word_suffix_.empty();
  if (!has_prefix && !has_suffix) {
    if (code_point >= kDirectCharacters) return IdOf(character);
    const TokenId id = direct_[code_point];
    return id == kNone ? std::nullopt : std::optional<TokenId>(id);
  }
  return IdOf(absl::StrCat(has_prefix ? continuing_subword_prefix_ : "",
                           character, has_suffix ? end_of_word_suffix_ : ""));
}

absl::Status BpeModel::AppendSymbols(absl::string_view word,
                                     std::vector<TokenId>* symbols) const {
  // An unknown token waits here, so that the next may be fused into it.
  TokenId pending_unknown = kNone;
  for (size_t at = 0; at < word.size();) {
    const Utf8Step step = NextUtf8(word, at);
    const absl::string_view character = word.substr(at, step.size);
    const bool is_last = at + step.size == word.size();
    const std::optional<TokenId> id =
        IdOfCharacter(character, step.code_point, at == 0, is_last);
    at += step.size;
    if (id.has_value()) {
      if (pending_unknown != kNone) symbols->push_back(pending_unknown);
      pending_unknown = kNone;
      symbols->push_back(*id);
      continue;
    }
    if (AppendBytes(character, symbols)) continue;
    if (unknown_token_.empty()) continue;
    const std::optional<TokenId> unknown = IdOf(unknown_token_);
    if (!unknown.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the text has a character that the tokenizer does not know, and its "
          "unknown token \"",
          unknown_token_, "\" is not in its vocabulary"));
    }
    if (pending_unknown != kNone && !fuse_unknown_) {
      symbols->push_back(pending_unknown);
    }
    pending_unknown = *unknown;
  }
  if (pending_unknown != kNone) symbols->push_back(pending_unknown);
  return absl::OkStatus();
}

bool BpeModel::AppendBytes(absl::string_view character,
                           std::vector<TokenId>* symbols) const {
  if (byte_tokens_.empty()) return false;
  for (const char c : character) {
    if (byte_tokens_[static_cast<uint8_t>(c)] == kNone) return false;
  }
  for (const char c : character) {
    symbols->push_back(byte_tokens_[static_cast<uint8_t>(c)]);
  }
  return true;
}

void BpeModel::MergeShortWord(std::vector<TokenId>* symbols) const {
  // merges[i] joins symbols i and i + 1.
  std::array<const Merge*, kShortWord> merges;
  size_t size = symbols->size();
  std::vector<TokenId>& ids = *symbols;
  for (size_t i = 0; i + 1 < size; ++i)
    merges[i] = FindMerge(ids[i], ids[i + 1]);
  while (true) {
    size_t best = size;
    for (size_t i = 0; i + 1 < size; ++i) {
      if (merges[i] == nullptr) continue;
      if (best == size || merges[i]->rank < merges[best]->rank) best = i;
    }
    if (best == size) break;
    ids[best] = merges[best]->merged;
    for (size_t i = best + 1; i + 1 < size; ++i) {
      ids[i] = ids[i + 1];
      merges[i] = merges[i + 1];
    }
    --size;
    if (best > 0) merges[best - 1] = FindMerge(ids[best - 1], ids[best]);
    if (best + 1 < size) merges[best] = FindMerge(ids[best], ids[best + 1]);
  }
  ids.resize(size);
}

}  // namespace baton::router
