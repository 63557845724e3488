// UTF-8 as Unicode and Hugging Face read it: what is well-formed, and what
// U+FFFD stands for where it is not.
//
// Pure functions over bytes; any thread. They never look beyond the text given
// and never allocate except for what they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// U+FFFD REPLACEMENT CHARACTER in UTF-8.
inline constexpr absl::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind {
  kCharacter,   // a well-formed sequence
  kIllFormed,   // bytes that no continuation can repair
  kIncomplete,  // a good beginning of a sequence that the text's end cuts off
};

struct Utf8Step {
  Utf8Kind kind;
  // Bytes covered, >= 1. For the two bad kinds these are the bytes that one
  // U+FFFD replaces: the "maximal subpart of an ill-formed subsequence" of the
  // Unicode Standard, section 3.9, which is also what Rust's from_utf8_lossy
  // and so Hugging Face does.
  int size;
  // Valid for kCharacter only.
  char32_t code_point;
};

// The step that starts at text[pos]. REQUIRES: pos < text.size().
Utf8Step NextUtf8(absl::string_view text, size_t pos);

bool IsValidUtf8(absl::string_view text);

// Bytes from `pos` to the first byte that is not part of a well-formed
// sequence (or the end).
size_t ValidUtf8Length(absl::string_view text, size_t pos);

// `text` with every ill-formed or incomplete piece replaced by U+FFFD.
std::string ReplaceIllFormedUtf8(absl::string_view text);

// The beginning of `text`: what of it fits into `max_bytes`, cut between
// characters, then repaired as above (so at most three times as long). For what
// others wrote and we pass on: protobuf takes valid UTF-8 only, and headers and
// trailers have little room.
std::string CutUtf8(absl::string_view text, size_t max_bytes);

// Whether a terminal or a reader of lines acts on it: it moves the cursor, ends
// lines, or turns the direction of writing.
bool IsControlCharacter(char32_t code_point);

// REQUIRES: code_point is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string* out);

}  // namespace baton
