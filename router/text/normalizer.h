// The "normalizer" of tokenizer.json: rewrites a text before it is split.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/json_node.h"

namespace baton::router {

class TextPattern;

// A part of the text between added tokens.
struct NormalizedText {
  std::string text;  // valid UTF-8
  // Whether its first character stands for the very beginning of the whole
  // input (Metaspace's prepend_scheme "first" asks).
  bool at_start = false;
};

// Immutable; any thread.
class Normalizer {
 public:
  // The normalizer that `node` describes: NFC, NFD, NFKC, NFKD, Lowercase,
  // Prepend, Replace, Strip or a Sequence of those. Unimplemented for others.
  static absl::StatusOr<std::unique_ptr<const Normalizer>> FromJson(
      const JsonNode& node);

  virtual ~Normalizer() = default;

  // Rewrites in place. ResourceExhausted where a Replace would let a text grow
  // past 1 GiB.
  virtual absl::Status Apply(NormalizedText* text) const = 0;
};

// `text` with every match of `pattern` replaced by `content`, as the normalizer
// and the decoder of the name Replace do it.
absl::StatusOr<std::string> ReplaceMatches(const TextPattern& pattern,
                                           absl::string_view content,
                                           absl::string_view text);

}  // namespace baton::router
