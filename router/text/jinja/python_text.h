// What Python's str can do, over UTF-8: code points, cases, white space, and
// how numbers and strings are spelled.
//
// Pure functions; any thread. Every text must be well-formed UTF-8. Each takes
// time in proportion to what it reads and makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

int64_t CodePoints(absl::string_view text);

// The byte at which code point `index` starts; the end for larger ones.
// `length` is the text's in code points. REQUIRES: index >= 0.
size_t ByteOffset(absl::string_view text, int64_t length, int64_t index);

// The code points of a text.
std::u32string Decode(absl::string_view text);
std::string Encode(std::u32string_view text);

// Where `part` first occurs at or after byte `from`, else npos. Linear, where
// string_view::find is not.
size_t FindText(absl::string_view text, absl::string_view part, size_t from);
// Where it occurs last, wholly before byte `end`.
size_t FindLastText(absl::string_view text, absl::string_view part, size_t end);

// str.isspace of one character, which is also the `\s` of Python's re.
bool IsSpace(char32_t c);
// The characters that \w of Python's re matches.
bool IsWordCharacterOfRe(char32_t c);
// str.isprintable of one character.
bool IsPrintable(char32_t c);

std::string ToUpper(absl::string_view text);
std::string ToLower(absl::string_view text);
std::string Capitalize(absl::string_view text);
std::string ToTitle(absl::string_view text);
std::string SwapCase(absl::string_view text);
std::string CaseFold(absl::string_view text);

// str.islower and str.isupper.
bool IsLower(absl::string_view text);
bool IsUpper(absl::string_view text);

enum class Side { kLeft, kRight, kBoth };
// `text` without the characters in `chars`, by default white space, at its
// ends.
absl::string_view Strip(absl::string_view text, Side side,
                        std::optional<absl::string_view> chars);

// str.splitlines.
std::vector<absl::string_view> SplitLines(absl::string_view text,
                                          bool keep_ends);

// `&`, `<`, `>` and both quotes as MarkupSafe escapes them.
std::string EscapeHtml(absl::string_view text);

// repr() of a str, an int and a float.
std::string ReprText(absl::string_view text);
std::string ReprInteger(Integer number);
std::string ReprFloat(double number);

// What int(text, base) and float(text) read; nothing where they fail.
// `too_large` says that it was a number, but beyond Integer.
std::optional<Integer> ParseInteger(absl::string_view text, int base,
                                    bool* too_large);
std::optional<double> ParseFloat(absl::string_view text);

// The beginning of a text, for messages.
std::string ShortText(absl::string_view text);

}  // namespace baton::router::jinja
