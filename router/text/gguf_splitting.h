// How a byte-level tokenizer of a GGUF file splits texts into words: such files
// have a name for it (tokenizer.ggml.pre) where tokenizer.json has the
// pre-tokenizer itself.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/json.h"

namespace baton::router {

struct GgufSplitting {
  std::vector<absl::string_view> names;
  // Regular expressions, each of which cuts what the ones before left into
  // matches and the rest; none: GPT-2's own.
  std::vector<const char*> regexes;
  // One by one, before GPT-2's expression or behind others.
  bool splits_digits = false;
  bool ignores_merges = false;
  bool normalizes = false;  // to NFC
  bool adds_bos = false;    // where the file does not say it

  // As tokenizer.json has it.
  nlohmann::json PreTokenizerJson() const;
};

// Null where nothing is known by this name. Any thread.
const GgufSplitting* FindGgufSplitting(absl::string_view name);

// For messages: "llama-bpe, ... and gpt-2".
std::string KnownGgufSplittings();

// The part of a pre-tokenizer, and the decoder, that write bytes as characters.
nlohmann::json ByteLevelStage(bool use_regex);

}  // namespace baton::router
