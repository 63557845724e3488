#include "router/text/tiktoken_tokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"
#include "router/text/bpe_model.h"
#include "router/text/byte_alphabet.h"
#include "router/text/gguf_splitting.h"
#include "router/text/json_node.h"

namespace baton::router {
namespace {

using nlohmann::json;

constexpr size_t kMaxTiktokenBytes = size_t{64} << 20;

// What tokenization_kimi.py and tokenization_moonshot.py call their class, the
// splitting of texts there, by the name that GGUF files have for it, and the
// ids that they set aside.
constexpr absl::string_view kClass = "TikTokenTokenizer";
constexpr absl::string_view kSplitting = "kimi-k2";
constexpr size_t kReservedTokens = 256;

// The bytes of each token, by its rank.
absl::StatusOr<std::vector<std::string>> ReadTokens(const std::string& path) {
  BATON_ASSIGN_OR_RETURN(const std::string file,
                         ReadSmallFile(path, kMaxTiktokenBytes));
  std::vector<std::string> tokens;
  absl::flat_hash_map<size_t, size_t> lines;  // of ranks
  absl::flat_hash_set<std::string> seen;
  size_t line = 0;
  const auto invalid = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": line ", line, " ", what));
  };
  for (const absl::string_view text : absl::StrSplit(file, '\n')) {
    ++line;
    if (text.empty()) continue;
    const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
    std::string token;
    uint64_t rank = 0;
    if (parts.size() != 2 || !absl::Base64Unescape(parts[0], &token) ||
        token.empty() || !absl::SimpleAtoi(parts[1], &rank)) {
      return invalid("is not a token in base64 and its rank");
    }
    if (rank >= kMaxVocabularySize) {
      return invalid(absl::StrCat("has rank ", rank, ", the largest is ",
                                  kMaxVocabularySize - 1));
    }
    const auto [first, is_new] = lines.emplace(rank, line);
    if (!is_new) {
      return invalid(absl::StrCat("has rank ", rank, ", as line ",
                                  first->second, " does"));
    }
    if (!seen.insert(token).second) {
      return invalid("has a token that was there before");
    }
    if (rank >= tokens.size()) tokens.resize(rank + 1);
    tokens[rank] = std::move(token);
  }
  const auto missing = std::find(tokens.begin(), tokens.end(), std::string());
  if (tokens.empty() || missing != tokens.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has no token of rank ",
                     std::distance(tokens.begin(), missing)));
  }
  return tokens;
}

// In the byte alphabet.
std::string SpellingOf(absl::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    absl::StrAppend(&spelling, ByteCharacter(static_cast<uint8_t>(c)));
  }
  return spelling;
}

json MergesOf(const std::vector<std::string>& tokens) {
  absl::flat_hash_map<absl::string_view, size_t> ranks;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    ranks.emplace(tokens[rank], rank);
  }
  json merges = json::array();
  std::vector<std::pair<size_t, size_t>> cuts;
  for (const absl::string_view token : tokens) {
    cuts.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      const auto left = ranks.find(token.substr(0, at));
      const auto right = ranks.find(token.substr(at));
      if (left == ranks.end() || right == ranks.end()) continue;
      cuts.emplace_back(left->second, right->second);
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& [left, right] : cuts) {
      merges.push_back({SpellingOf(tokens[left]), SpellingOf(tokens[right])});
    }
  }
  return merges;
}

json AddedTokenJson(size_t id, std::string content, bool special) {
  return {{"id", id},
          {"content", std::move(content)},
          {"special", special},
          {"normalized", false},
          {"single_word", false},
          {"lstrip", false},
          {"rstrip", false}};
}

// Those that have names, and the other ids that are set aside.
absl::StatusOr<json> AddedTokensOf(const JsonNode& config, size_t base) {
  constexpr absl::string_view kField = "added_tokens_decoder";
  std::vector<json> reserved(kReservedTokens);
  if (config.Has(kField)) {
    BATON_ASSIGN_OR_RETURN(const JsonNode named, config.Field(kField));
    if (!named.value().is_object()) return named.Invalid("is not an object");
    for (const auto& item : named.value().items()) {
      BATON_ASSIGN_OR_RETURN(const JsonNode token, named.Field(item.key()));
      uint64_t id = 0;
      if (!absl::SimpleAtoi(item.key(), &id) || id < base) {
        return token.Invalid(absl::StrCat(
            "is not a token behind the vocabulary, which has ", base));
      }
      // Moonlight's class has two more, which no model has.
      if (id - base >= kReservedTokens) continue;
      BATON_ASSIGN_OR_RETURN(std::string content, token.String("content"));
      BATON_ASSIGN_OR_RETURN(const bool special, token.Bool("special", true));
      reserved[id - base] = AddedTokenJson(id, std::move(content), special);
    }
  }
  json added = json::array();
  for (size_t i = 0; i < kReservedTokens; ++i) {
    const size_t id = base + i;
    added.push_back(
        !reserved[i].is_null()
            ? std::move(reserved[i])
            : AddedTokenJson(id, absl::StrCat("<|reserved_token_", id, "|>"),
                             /*special=*/true));
  }
  return added;
}

}  // namespace

absl::StatusOr<json> TiktokenTokenizerJson(const std::string& model_dir) {
  BATON_ASSIGN_OR_RETURN(
      const std::vector<std::string> tokens,
      ReadTokens(absl::StrCat(model_dir, "/tiktoken.model")));
  const std::string path = absl::StrCat(model_dir, "/tokenizer_config.json");
  const absl::StatusOr<json> document = ReadJsonFile(path);
  if (absl::IsNotFound(document.status())) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " is not there, which says how texts are split beside ",
        "tiktoken.model"));
  }
  BATON_RETURN_IF_ERROR(document.status());
  const JsonNode config(&*document, path);
  BATON_ASSIGN_OR_RETURN(const std::string name,
                         config.String("tokenizer_class"));
  if (name != kClass) return config.Unsupported("tokenizer_class");
  BATON_ASSIGN_OR_RETURN(json added, AddedTokensOf(config, tokens.size()));
  json vocab = json::object();
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    vocab.emplace(SpellingOf(tokens[rank]), rank);
  }
  return json{
      {"version", "1.0"},
      {"pre_tokenizer", FindGgufSplitting(kSplitting)->PreTokenizerJson()},
      {"decoder", ByteLevelStage(/*use_regex=*/true)},
      {"added_tokens", std::move(added)},
      {"model",
       {{"type", "BPE"},
        // A word that is a token is that one, whatever its parts are.
        {"ignore_merges", true},
        {"vocab", std::move(vocab)},
        {"merges", MergesOf(tokens)}}}};
}

}  // namespace baton::router
