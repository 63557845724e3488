// The "pre_tokenizer" of tokenizer.json: splits a normalized text into the
// pieces ("words") that the model encodes one by one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/json_node.h"

namespace baton::router {

// A text and its pieces, which are in order, not empty and do not overlap; a
// splitter may leave gaps (removed delimiters).
struct TextPieces {
  struct Piece {
    size_t begin;  // byte offsets in text
    size_t end;
    bool at_start;  // see NormalizedText::at_start
  };

  absl::string_view View(const Piece& piece) const {
    return absl::string_view(text).substr(piece.begin, piece.end - piece.begin);
  }

  std::string text;  // valid UTF-8
  std::vector<Piece> pieces;
};

// Immutable; any thread.
class PreTokenizer {
 public:
  // The pre-tokenizer that `node` describes: ByteLevel, Split, Metaspace,
  // Digits, Whitespace, WhitespaceSplit, Punctuation or a Sequence of those.
  // Unimplemented for others.
  static absl::StatusOr<std::unique_ptr<const PreTokenizer>> FromJson(
      const JsonNode& node);

  virtual ~PreTokenizer() = default;

  // Rewrites and splits the pieces further.
  virtual absl::Status Apply(TextPieces* pieces) const = 0;

  // Whether its pieces are written in the byte alphabet, so that any byte can
  // be encoded.
  virtual bool IsByteLevel() const { return false; }
};

}  // namespace baton::router
