// Sets of characters, and how they look in an answer: as grammars, which know
// bytes alone. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "scheduling/grammar.h"

namespace baton::router {

// A set of Unicode's scalar values (no surrogates).
class CharacterSet final {
 public:
  struct Range {
    char32_t first;
    char32_t last;
    friend bool operator==(const Range&, const Range&) = default;
  };

  using Ranges = std::vector<Range>;

  static constexpr char32_t kLast = 0x10FFFF;

  static CharacterSet All();

  // `first` to `last`, without what are surrogates. REQUIRES: first <= last <=
  // kLast.
  void Add(char32_t first, char32_t last);
  void Add(const CharacterSet& other);
  CharacterSet Complement() const;

  bool empty() const { return ranges_.empty(); }
  bool Has(char32_t character) const;
  // Rising, and none touches the next.
  const Ranges& ranges() const { return ranges_; }

 private:
  Ranges ranges_;
};

// How a character is written.
enum class Writing {
  kPlain,       // in UTF-8
  kJsonString,  // within a JSON string: UTF-8, but for quotes, backslashes and
                // control characters, which have the escape that JSON has for
                // them (\n; \u001f where there is no shorter one)
};

// Adds `character`, so written, to `text`. REQUIRES: it is a scalar value.
void AppendCharacter(char32_t character, Writing writing, std::string* text);

// One character of the set. One that no answer can have is nothing that
// matches.
scheduling::GrammarBuilder::Expression WriteCharacter(
    const CharacterSet& set, Writing writing,
    scheduling::GrammarBuilder* grammar);

}  // namespace baton::router
