// The "model" of tokenizer.json, of type BPE: from a pre-tokenized word to
// token ids by merging pairs of symbols in the order of their rank
// (Sennrich et al. 2016, arXiv 1508.07909; merge order as Hugging Face's).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/ids.h"
#include "router/text/json_node.h"

namespace baton::router {

// Most ids a tokenizer may have; ids at or above it are refused.
inline constexpr int64_t kMaxVocabularySize = int64_t{1} << 22;

// Immutable after FromJson; any thread.
class BpeModel final {
 public:
  // Unimplemented for other model types and for dropout; InvalidArgument for
  // a broken vocabulary or for merges of unknown tokens.
  static absl::StatusOr<BpeModel> FromJson(const JsonNode& node);

  BpeModel(BpeModel&&) = default;
  BpeModel& operator=(BpeModel&&) = default;

  // Appends the ids of one word in O(n log n) of its length. A character that
  // the vocabulary lacks becomes its bytes' tokens (byte_fallback), the unknown
  // token, or, where there is neither, nothing. InvalidArgument where the
  // unknown token is needed and not in the vocabulary. REQUIRES: `word` is
  // valid UTF-8.
  absl::Status Encode(absl::string_view word, std::vector<TokenId>* ids) const;

  std::optional<TokenId> IdOf(absl::string_view token) const;
  // Null for an id without a token.
  const std::string* TokenOf(TokenId id) const;

  // Number of entries of the vocabulary (not the largest id).
  int64_t entry_count() const { return static_cast<int64_t>(ids_.size()); }
  // One more than the largest id.
  int64_t id_limit() const { return static_cast<int64_t>(tokens_.size()); }

 private:
  struct Merge {
    int32_t rank;
    TokenId merged;
  };

  BpeModel() = default;

  absl::Status ReadVocabulary(const JsonNode& node);
  absl::Status ReadMerges(const JsonNode& node);
  absl::Status AddMerge(const JsonNode& node, int32_t rank,
                        absl::string_view left, absl::string_view right);
  void BuildTables();

  const Merge* FindMerge(TokenId left, TokenId right) const;
  absl::Status AppendSymbols(absl::string_view word,
                             std::vector<TokenId>* symbols) const;
  // False, and nothing appended, if not all bytes have tokens.
  bool AppendBytes(absl::string_view character,
                   std::vector<TokenId>* symbols) const;
  std::optional<TokenId> IdOfCharacter(absl::string_view character,
                                       char32_t code_point, bool is_first,
                                       bool is_last) const;
  void MergeWord(std::vector<TokenId>* symbols) const;
  void MergeShortWord(std::vector<TokenId>* symbols) const;
  void MergeLongWord(std::vector<TokenId>* symbols) const;
  // Whether some merge has a left side that ends, and a right side that begins,
  // like these two symbols.
  bool MayMergeAcross(TokenId left, TokenId right) const;

  static constexpr int kDirectCharacters = 0x200;

  std::vector<std::string> tokens_;                      // by id
  std::vector<bool> is_token_;                           // by id
  absl::flat_hash_map<absl::string_view, TokenId> ids_;  // views of tokens_
  absl::flat_hash_map<uint64_t, Merge> merges_;          // by PairKey
  // The characters on the two sides of each merge's joint, as PairKeys. Where a
  // word has a joint that is not among them, no merge ever spans it, and the
  // two sides can be merged each for itself. SentencePiece-style vocabularies
  // have no pre-tokenizer, so that only this makes words of their texts.
  absl::flat_hash_set<uint64_t> joints_;
  // Ids of the one-character tokens below U+0200, which is all of the byte
  // alphabet; -1 for none.
  std::array<TokenId, kDirectCharacters> direct_;
  // Ids of <0x00> to <0xFF> if byte_fallback is on, else empty; -1 for none.
  std::vector<TokenId> byte_tokens_;
  std::string continuing_subword_prefix_;
  std::string end_of_word_suffix_;
  std::string unknown_token_;  // empty: none
  bool fuse_unknown_ = false;
  bool ignore_merges_ = false;
};

}  // namespace baton::router
