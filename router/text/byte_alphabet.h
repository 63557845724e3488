// The byte-level alphabet: GPT-2's bijection between the 256 bytes and 256
// printable characters, in which byte-level vocabularies are written
// (openai/gpt-2, encoder.py, bytes_to_unicode).
//
// Printable Latin-1 bytes stand for themselves, the other 68 for U+0100 on, in
// order. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

// The character of `byte`, as UTF-8 (one or two bytes).
const std::string& ByteCharacter(uint8_t byte);

// The byte that the character stands for.
std::optional<uint8_t> ByteOfCharacter(char32_t code_point);

// Appends the bytes that `token` stands for: byte by byte if all its
// characters are of the alphabet, else its own UTF-8 bytes (an added token,
// for instance). REQUIRES: `token` is valid UTF-8.
void AppendByteLevelToken(absl::string_view token, std::string* bytes);

}  // namespace baton::router
