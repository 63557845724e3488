#include "router/output_format/characters.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::ByteSet;
using scheduling::GrammarBuilder;

constexpr char32_t kBeforeSurrogates = 0xD7FF;
constexpr char32_t kBehindSurrogates = 0xE000;
constexpr char32_t kFirstPrintable = 0x20;  // below are control characters
constexpr absl::string_view kEscapeDigits = "0123456789abcdef";

// Bytes that begin characters in the same way: any of `bytes`, then what one of
// `next` says. With no `next`, any `open` continuation bytes.
struct Utf8Branch {
  ByteSet bytes;
  int open = 0;
  std::vector<Utf8Branch> next;
};

// The last 6 * `open` bits.
char32_t Utf8TailMask(int open) { return (char32_t{1} << (6 * open)) - 1; }

// How the numbers of `ranges` are written by a byte that has their bits above
// the last 6 * `open`, and the bits of `mark`, and by `open` continuation
// bytes.
std::vector<Utf8Branch> SplitByLead(const CharacterSet::Ranges& ranges,
                                    uint8_t mark, int open) {
  const int shift = 6 * open;
  const char32_t mask = Utf8TailMask(open);
  std::array<CharacterSet::Ranges, 256> tails;
  for (const CharacterSet::Range& range : ranges) {
    const char32_t first_lead = range.first >> shift;
    const char32_t last_lead = range.last >> shift;
    for (char32_t lead = first_lead; lead <= last_lead; ++lead) {
      tails[mark | lead].push_back(
          {lead == first_lead ? range.first & mask : 0,
           lead == last_lead ? range.last & mask : mask});
    }
  }
  std::vector<Utf8Branch> branches;
  std::vector<const CharacterSet::Ranges*> tails_of;  // of each branch
  for (size_t byte = 0; byte < tails.size(); ++byte) {
    if (tails[byte].empty()) continue;
    const auto same = std::find_if(tails_of.begin(), tails_of.end(),
                                   [&](const CharacterSet::Ranges* other) {
                                     return *other == tails[byte];
                                   });
    if (same == tails_of.end()) {
      tails_of.push_back(&tails[byte]);
      branches.emplace_back().open = open;
      branches.back().bytes.set(byte);
    } else {
      branches[static_cast<size_t>(same - tails_of.begin())].bytes.set(byte);
    }
  }
  for (size_t i = 0; i < branches.size(); ++i) {
    if (tails_of[i]->front() != CharacterSet::Range{0, mask}) {
      branches[i].next = SplitByLead(*tails_of[i], 0x80, open - 1);
    }
  }
  return branches;
}

// The UTF-8 of all of `ranges`, by their first bytes.
std::vector<Utf8Branch> SplitUtf8(const CharacterSet::Ranges& ranges) {
  struct Length {
    CharacterSet::Range range;
    uint8_t mark;
    int open;
  };
  constexpr Length kLengths[] = {{{0, 0x7F}, 0, 0},
                                 {{0x80, 0x7FF}, 0xC0, 1},
                                 {{0x800, 0xFFFF}, 0xE0, 2},
                                 {{0x10000, CharacterSet::kLast}, 0xF0, 3}};
  std::vector<Utf8Branch> branches;
  for (const Length& length : kLengths) {
    CharacterSet::Ranges of_length;
    for (const CharacterSet::Range& range : ranges) {
      const char32_t first = std::max(range.first, length.range.first);
      const char32_t last = std::min(range.last, length.range.last);
      if (first > last) continue;
      // A number's bits above those of its length's first byte are zero.
      of_length.push_back({first, last});
    }
    for (Utf8Branch& branch :
         SplitByLead(of_length, length.mark, length.open)) {
      branches.push_back(std::move(branch));
    }
  }
  return branches;
}

// Adds to `choices` the ways through `branches` that end with just `open` bytes
// left.
void WriteUtf8Paths(const std::vector<Utf8Branch>& branches, int open,
                    GrammarBuilder* grammar, std::vector<Expression>* choices) {
  ByteSet last;
  for (const Utf8Branch& branch : branches) {
    if (branch.next.empty()) {
      if (branch.open == open) last |= branch.bytes;
      continue;
    }
    std::vector<Expression> rest;
    WriteUtf8Paths(branch.next, open, grammar, &rest);
    if (rest.empty()) continue;
    choices->push_back(grammar->Sequence(
        {grammar->Byte(branch.bytes), grammar->Choice(rest)}));
  }
  if (last.any()) choices->push_back(grammar->Byte(last));
}

// Adds to `choices` the UTF-8 of all of `ranges`. Whatever ends with any
// continuation bytes has those in common, so that there are few expressions and
// an answer is at few places at a time.
void WriteUtf8(const CharacterSet::Ranges& ranges, GrammarBuilder* grammar,
               std::vector<Expression>* choices) {
  const std::vector<Utf8Branch> branches = SplitUtf8(ranges);
  std::optional<Expression> continuation;
  std::vector<Expression> longer;  // which one byte more ends
  for (int open = 3; open >= 0; --open) {
    std::vector<Expression> paths;
    WriteUtf8Paths(branches, open, grammar, &paths);
    if (!longer.empty()) {
      if (!continuation.has_value()) {
        continuation = grammar->ByteRange(0x80, 0xBF);
      }
      paths.push_back(
          grammar->Sequence({grammar->Choice(longer), *continuation}));
    }
    longer = std::move(paths);
  }
  choices->insert(choices->end(), longer.begin(), longer.end());
}

// The letter behind the backslash, if JSON has one for this character.
std::optional<char> ShortEscape(char32_t character) {
  switch (character) {
    case '"':
      return '"';
    case '\\':
      return '\\';
    case '\b':
      return 'b';
    case '\f':
      return 'f';
    case '\n':
      return 'n';
    case '\r':
      return 'r';
    case '\t':
      return 't';
    default:
      return std::nullopt;
  }
}

bool IsEscaped(char32_t character) {
  return character < kFirstPrintable || ShortEscape(character).has_value();
}

// Adds to `choices` the escapes of those of the set that have one.
void WriteEscapes(const CharacterSet& set, GrammarBuilder* grammar,
                  std::vector<Expression>* choices) {
  ByteSet letters;
  ByteSet digits[2];  // the last ones of \u000x and of \u001x
  for (char32_t c = 0; c <= '\\'; ++c) {
    if (!IsEscaped(c) || !set.Has(c)) continue;
    if (const std::optional<char> letter = ShortEscape(c)) {
      letters.set(static_cast<uint8_t>(*letter));
    } else {
      digits[c >> 4].set(static_cast<uint8_t>(kEscapeDigits[c & 0xF]));
    }
  }
  std::vector<Expression> behind;  // a backslash
  if (letters.any()) behind.push_back(grammar->Byte(letters));
  for (int high = 0; high < 2; ++high) {
    if (digits[high].none()) continue;
    behind.push_back(
        grammar->Sequence({grammar->Literal(absl::StrCat("u00", high)),
                           grammar->Byte(digits[high])}));
  }
  if (behind.empty()) return;
  choices->push_back(
      grammar->Sequence({grammar->Literal("\\"), grammar->Choice(behind)}));
}

// Those of the set that stand for themselves in a JSON string.
CharacterSet::Ranges Unescaped(const CharacterSet& set) {
  CharacterSet others = set.Complement();
  others.Add(0, kFirstPrintable - 1);
  others.Add('"', '"');
  others.Add('\\', '\\');
  return others.Complement().ranges();
}

// Adds a range that holds no surrogates.
void AddRange(CharacterSet::Range range, CharacterSet::Ranges* ranges) {
  // The first that reaches up to it or comes behind it.
  const auto begin =
      std::lower_bound(ranges->begin(), ranges->end(), range.first,
                       [](const CharacterSet::Range& each, char32_t character) {
                         return each.last + 1 < character;
                       });
  auto end = begin;
  for (; end != ranges->end() && end->first <= range.last + 1; ++end) {
    range.first = std::min(range.first, end->first);
    range.last = std::max(range.last, end->last);
  }
  if (begin == end) {
    ranges->insert(begin, range);
  } else {
    *begin = range;
    ranges->erase(begin + 1, end);
  }
}

}  // namespace

CharacterSet CharacterSet::All() {
  CharacterSet all;
  all.Add(0, kLast);
  return all;
}

void CharacterSet::Add(char32_t first, char32_t last) {
  CHECK(first <= last && last <= kLast)
      << static_cast<uint32_t>(first) << " to " << static_cast<uint32_t>(last);
  if (first <= kBeforeSurrogates) {
    AddRange({first, std::min(last, kBeforeSurrogates)}, &ranges_);
  }
  if (last >= kBehindSurrogates) {
    AddRange({std::max(first, kBehindSurrogates), last}, &ranges_);
  }
}

void CharacterSet::Add(const CharacterSet& other) {
  for (const Range& range : other.ranges_) AddRange(range, &ranges_);
}

CharacterSet CharacterSet::Complement() const {
  CharacterSet complement;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (next < range.first) complement.Add(next, range.first - 1);
    next = range.last + 1;
  }
  if (next <= kLast) complement.Add(next, kLast);
  return complement;
}

bool CharacterSet::Has(char32_t character) const {
  const auto range = std::lower_bound(
      ranges_.begin(), ranges_.end(), character,
      [](const Range& each, char32_t wanted) { return each.last < wanted; });
  return range != ranges_.end() && range->first <= character;
}

void AppendCharacter(char32_t character, Writing writing, std::string* text) {
  if (writing == Writing::kPlain || !IsEscaped(character)) {
    AppendUtf8(character, text);
  } else if (const std::optional<char> letter = ShortEscape(character)) {
    absl::StrAppend(text, "\\", absl::string_view(&*letter, 1));
  } else {
    absl::StrAppend(text, "\\u00", character >> 4,
                    kEscapeDigits.substr(character & 0xF, 1));
  }
}

Expression WriteCharacter(const CharacterSet& set, Writing writing,
                          GrammarBuilder* grammar) {
  const CharacterSet::Ranges& ranges = set.ranges();
  if (ranges.size() == 1 && ranges[0].first == ranges[0].last) {
    std::string text;
    AppendCharacter(ranges[0].first, writing, &text);
    return grammar->Literal(text);
  }
  std::vector<Expression> choices;
  switch (writing) {
    case Writing::kPlain:
      WriteUtf8(ranges, grammar, &choices);
      break;
    case Writing::kJsonString:
      WriteUtf8(Unescaped(set), grammar, &choices);
      WriteEscapes(set, grammar, &choices);
      break;
  }
  return grammar->Choice(choices);
}

}  // namespace baton::router
