// The "added_tokens" of tokenizer.json: tokens that are cut out of a text
// before the model sees it, such as <|im_start|>.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "router/text/bpe_model.h"
#include "router/text/json_node.h"
#include "router/text/normalizer.h"

namespace baton::router {

struct AddedToken {
  TokenId id;
  std::string content;
  // Matched only between word boundaries.
  bool single_word = false;
  // Takes the white space before (after) it with it.
  bool strip_left = false;
  bool strip_right = false;
  // Matched in the normalized text, by its own normalized form.
  bool normalized = false;
  // Left out by skip_special_tokens, and not matched by parse_special = false.
  bool special = false;
};

// Finds the longest of many strings at a place: a byte trie.
class StringTrie final {
 public:
  void Insert(absl::string_view key, int32_t value);

  // The longest key that `text` has at `pos`: its value and length.
  struct Match {
    int32_t value;
    size_t size;
  };
  std::optional<Match> LongestAt(absl::string_view text, size_t pos) const;

 private:
  absl::flat_hash_map<uint64_t, int32_t> children_;  // node << 8 | byte
  std::array<bool, 256> starts_{};                   // first bytes of keys
  std::vector<int32_t> values_ = {-1};               // by node; -1: no key
};

// Immutable after FromJson; any thread.
class AddedTokens final {
 public:
  // A part of a text: an added token (token != null) or text between them.
  struct Part {
    const AddedToken* token;
    size_t begin;
    size_t end;
  };

  // Reads the array; no array is no tokens. A token that the model's
  // vocabulary has keeps its id there; the others are numbered from the end of
  // the vocabulary in the order of the file, as Hugging Face does whatever the
  // file's "id" says (a difference is logged). `normalizer` may be null.
  static absl::StatusOr<AddedTokens> FromJson(const JsonNode& root,
                                              const BpeModel& model,
                                              const Normalizer* normalizer);

  // The parts of `text`, in order and not empty, cut at the tokens with
  // `normalized` or at those without. With `skip_special`, special tokens are
  // left in the text.
  std::vector<Part> Split(absl::string_view text, bool normalized,
                          bool skip_special) const;

  // Null if there is no added token of that id.
  const AddedToken* Find(TokenId id) const;
  std::optional<TokenId> IdOf(absl::string_view content) const;
  // One more than the largest id; 0 if there are none.
  int64_t id_limit() const { return id_limit_; }

 private:
  absl::Status Add(AddedToken token, const BpeModel& model);
  absl::Status BuildTries(const Normalizer* normalizer);

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<TokenId, int32_t> index_by_id_;
  absl::flat_hash_map<std::string, int32_t> index_by_content_;
  StringTrie raw_trie_;         // values are indices of tokens_
  StringTrie normalized_trie_;  // likewise
  int64_t id_limit_ = 0;
};

}  // namespace baton::router
