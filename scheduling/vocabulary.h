// The bytes that each token of a vocabulary adds to an answer, arranged for
// finding all tokens that a grammar allows: as a tree in which tokens that
// begin alike share the nodes of what they have in common.
//
// Immutable; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/stable_hash.h"

namespace baton::scheduling {

class Vocabulary final {
 public:
  // `texts[t]` is what token t adds in the middle of an answer; empty: nothing
  // that a client sees, as of tokens with which the model says that it is done.
  // Tokens without text are never part of what a grammar describes.
  // REQUIRES: not empty.
  explicit Vocabulary(std::vector<std::string> texts);

  // Of all texts: the same for vocabularies that are the same.
  const Hash128& hash() const { return hash_; }
  int32_t size() const { return static_cast<int32_t>(texts_.size()); }
  // REQUIRES: 0 <= token < size().
  const std::string& text(TokenId token) const {
    return texts_[static_cast<size_t>(token)];
  }

  // A byte behind those of the nodes above it. Nodes stand in the order in
  // which a walk meets them: each before what is below it.
  struct Node {
    uint8_t byte = 0;
    uint16_t depth = 0;  // bytes before it
    // The node behind all that are below this one.
    uint32_t end = 0;
    // The tokens that end here: tokens()[first_token, next node's first_token).
    uint32_t first_token = 0;
  };
  // One more than there are, the last of which only ends the list of tokens.
  absl::Span<const Node> nodes() const { return nodes_; }
  absl::Span<const TokenId> tokens() const { return tokens_; }
  // The token whose text is the longest that `text` begins with, the lowest of
  // those that have the same; none where none is.
  std::optional<TokenId> Longest(absl::string_view text) const;
  // Bytes of the longest text that can come out: longer ones, of more than
  // kMaxTokenBytes, are as if they had none.
  static constexpr size_t kMaxTokenBytes = 4096;

 private:
  std::vector<std::string> texts_;
  Hash128 hash_;
  std::vector<Node> nodes_;
  std::vector<TokenId> tokens_;
};

}  // namespace baton::scheduling
