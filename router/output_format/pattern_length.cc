#include "router/output_format/pattern_length.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using NodeKind = PatternNode::Kind;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

// Of the automaton of one pattern, and of what comes of it and the counter:
// three quarters of what a grammar may have.
constexpr size_t kMaxPlaces = 4096;
constexpr size_t kMaxWritten = scheduling::kMaxGrammarExpressions / 4 * 3;

uint32_t Capped(uint64_t number) {
  return static_cast<uint32_t>(std::min<uint64_t>(number, kAnyNumber));
}
uint32_t Sum(uint32_t a, uint32_t b) { return Capped(uint64_t{a} + b); }
uint32_t Product(uint32_t a, uint32_t b) { return Capped(uint64_t{a} * b); }

TextLength LengthsOfNode(const PatternNode& node) {
  switch (node.kind) {
    case NodeKind::kCharacter:
      return {1, 1};
    case NodeKind::kBegin:
    case NodeKind::kEnd:
      break;
    case NodeKind::kSequence:
      return LengthsOf(node.parts);
    case NodeKind::kChoice: {
      TextLength all = {kAnyNumber, 0};
      for (const PatternNode& part : node.parts) {
        const TextLength one = LengthsOfNode(part);
        all.least = std::min(all.least, one.least);
        all.most = std::max(all.most, one.most);
      }
      return all;
    }
    case NodeKind::kRepeat: {
      const TextLength one = LengthsOfNode(node.parts[0]);
      return {Product(one.least, node.least), Product(one.most, node.most)};
    }
  }
  return {0, 0};
}

// An automaton over characters (Thompson 1968), from its end backwards, and the
// rules of all its places with all numbers of characters before them.
class LengthProduct final {
 public:
  LengthProduct(absl::Span<const PatternNode> parts, TextLength length)
      : length_(length) {
    places_.push_back({.kind = PlaceKind::kEnd});
    begin_ = WriteParts(parts, 0);
    if (!full_) FindLeast();
  }

  absl::StatusOr<GrammarBuilder::Expression> Write(
      absl::FunctionRef<GrammarBuilder::Expression(const CharacterSet&)> write,
      GrammarBuilder* grammar);

 private:
  enum class PlaceKind { kEnd, kCharacter, kSplit };
  struct Place {
    PlaceKind kind = PlaceKind::kEnd;
    uint32_t next = 0;
    uint32_t other = 0;  // kSplit
    const CharacterSet* set = nullptr;
    uint32_t least = kAnyNumber;  // characters to the end
  };
  // Where a text may be without another character.
  struct Reached {
    std::vector<uint32_t> characters;
    bool end = false;
  };
  // A place, and how many characters came before it.
  using State = std::pair<uint32_t, uint32_t>;

  uint32_t Add(Place place) {
    if (places_.size() >= kMaxPlaces) full_ = true;
    if (full_) return 0;
    places_.push_back(place);
    return static_cast<uint32_t>(places_.size() - 1);
  }
  uint32_t WriteParts(absl::Span<const PatternNode> parts, uint32_t next) {
    for (size_t i = parts.size(); i-- > 0 && !full_;) {
      next = WriteNode(parts[i], next);
    }
    return next;
  }
  uint32_t WriteNode(const PatternNode& node, uint32_t next);
  uint32_t WriteRepeat(const PatternNode& node, uint32_t next);
  void FindLeast();
  const Reached& Reach(uint32_t place);
  // The state behind a character at `place`, if its text may still be as long
  // as it must.
  bool Next(uint32_t place, uint32_t before, State* next) const;
  // False: there are too many.
  bool FindStates();

  const TextLength length_;
  std::vector<Place> places_;
  uint32_t begin_ = 0;
  bool full_ = false;
  size_t nodes_ = 0;  // that were written, with or without a place
  absl::flat_hash_map<uint32_t, Reached> reached_;
  std::vector<State> states_;  // the first one is the beginning
  absl::flat_hash_map<State, uint32_t> numbers_;
};

uint32_t LengthProduct::WriteNode(const PatternNode& node, uint32_t next) {
  // Those without a place cost time, too.
  if (++nodes_ > 4 * kMaxPlaces) full_ = true;
  if (full_) return 0;
  switch (node.kind) {
    case NodeKind::kCharacter:
      return Add({.kind = PlaceKind::kCharacter,
                  .next = next,
                  .set = &node.characters});
    case NodeKind::kBegin:
    case NodeKind::kEnd:
      break;
    case NodeKind::kSequence:
      return WriteParts(node.parts, next);
    case NodeKind::kChoice: {
      uint32_t ways = WriteNode(node.parts.back(), next);
      for (size_t i = node.parts.size() - 1; i-- > 0 && !full_;) {
        ways = Add({.kind = PlaceKind::kSplit,
                    .next = WriteNode(node.parts[i], next),
                    .other = ways});
      }
      return ways;
    }
    case NodeKind::kRepeat:
      return WriteRepeat(node, next);
  }
  return next;
}

uint32_t LengthProduct::WriteRepeat(const PatternNode& node, uint32_t next) {
  const PatternNode& part = node.parts[0];
  if (node.most == kAnyNumber) {
    const uint32_t loop = Add({.kind = PlaceKind::kSplit, .other = next});
    const uint32_t again = WriteNode(part, loop);
    if (full_) return 0;
    places_[loop].next = again;
    next = loop;
  } else {
    const uint32_t end = next;
    for (uint32_t i = node.least; i < node.most && !full_; ++i) {
      next = Add({.kind = PlaceKind::kSplit,
                  .next = WriteNode(part, next),
                  .other = end});
    }
  }
  for (uint32_t i = 0; i < node.least && !full_; ++i) {
    next = WriteNode(part, next);
  }
  return next;
}

// Places come after what they lead to, but for loops: a few rounds.
void LengthProduct::FindLeast() {
  places_[0].least = 0;
  for (bool changed = true; changed;) {
    changed = false;
    for (Place& place : places_) {
      uint32_t least = place.least;
      if (place.kind == PlaceKind::kCharacter) {
        // What no text can have leads nowhere.
        if (!place.set->empty()) {
          least = std::min(least, Sum(places_[place.next].least, 1));
        }
      } else if (place.kind == PlaceKind::kSplit) {
        least = std::min(
            {least, places_[place.next].least, places_[place.other].least});
      }
      changed = changed || least != place.least;
      place.least = least;
    }
  }
}

const LengthProduct::Reached& LengthProduct::Reach(uint32_t place) {
  const auto [it, is_new] = reached_.try_emplace(place);
  Reached& reached = it->second;
  if (!is_new) return reached;
  std::vector<bool> seen(places_.size());
  std::vector<uint32_t> open = {place};
  while (!open.empty()) {
    const uint32_t at = open.back();
    open.pop_back();
    if (seen[at]) continue;
    seen[at] = true;
    const Place& here = places_[at];
    switch (here.kind) {
      case PlaceKind::kEnd:
        reached.end = true;
        break;
      case PlaceKind::kCharacter:
        reached.characters.push_back(at);
        break;
      case PlaceKind::kSplit:
        open.push_back(here.next);
        open.push_back(here.other);
        break;
    }
  }
  return reached;
}

bool LengthProduct::Next(uint32_t place, uint32_t before, State* next) const {
  const uint32_t least = places_[place].least;
  if (least == kAnyNumber) return false;
  if (length_.most != kAnyNumber && Sum(before, least) > length_.most) {
    return false;
  }
  uint32_t behind = before + 1;
  // Without an upper bound only those are counted that must be.
  if (length_.most == kAnyNumber) behind = std::min(behind, length_.least);
  *next = {places_[place].next, behind};
  return true;
}

bool LengthProduct::FindStates() {
  if (full_) return false;
  const auto number = [this](const State& state) {
    if (numbers_.try_emplace(state, states_.size()).second) {
      states_.push_back(state);
    }
  };
  number({begin_, 0});
  size_t written = 0;
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto [place, before] = states_[i];
    written += 2;
    for (const uint32_t character : Reach(place).characters) {
      State next;
      if (!Next(character, before, &next)) continue;
      number(next);
      written += 2;
    }
    if (written > kMaxWritten) return false;
  }
  return true;
}

absl::StatusOr<GrammarBuilder::Expression> LengthProduct::Write(
    absl::FunctionRef<GrammarBuilder::Expression(const CharacterSet&)> write,
    GrammarBuilder* grammar) {
  if (!FindStates()) {
    return absl::UnimplementedError(absl::StrCat(
        "has more than ", kMaxWritten,
        " parts where its bounds of length are counted, which Baton does not "
        "write"));
  }
  std::vector<GrammarBuilder::Rule> rules(states_.size());
  for (GrammarBuilder::Rule& rule : rules) rule = grammar->NewRule();
  for (size_t i = 0; i < states_.size(); ++i) {
    const auto [place, before] = states_[i];
    const Reached& reached = Reach(place);
    std::vector<GrammarBuilder::Expression> ways;
    if (reached.end && before >= length_.least) {
      ways.push_back(grammar->Sequence({}));
    }
    for (const uint32_t character : reached.characters) {
      State next;
      if (!Next(character, before, &next)) continue;
      ways.push_back(grammar->Sequence({write(*places_[character].set),
                                        grammar->Call(rules[numbers_[next]])}));
    }
    grammar->Define(rules[i], grammar->Choice(ways));
  }
  return grammar->Call(rules[0]);
}

}  // namespace

TextLength LengthsOf(absl::Span<const PatternNode> parts) {
  TextLength all = {0, 0};
  for (const PatternNode& part : parts) {
    const TextLength one = LengthsOfNode(part);
    all = {Sum(all.least, one.least), Sum(all.most, one.most)};
  }
  return all;
}

bool NarrowLength(TextLength length, std::vector<PatternNode>* parts) {
  PatternNode* several = nullptr;  // the one of several lengths
  uint32_t others = 0;
  for (PatternNode& part : *parts) {
    const TextLength one = LengthsOfNode(part);
    if (one.least == one.most) {
      others = Sum(others, one.least);
    } else if (several == nullptr && part.kind == NodeKind::kRepeat) {
      several = &part;
    } else {
      return false;
    }
  }
  if (several == nullptr) return false;
  const TextLength one = LengthsOfNode(several->parts[0]);
  if (one.least != one.most) return false;
  const uint32_t least = length.least > others ? length.least - others : 0;
  several->least =
      std::max(several->least, Sum(least, one.least - 1) / one.least);
  if (length.most != kAnyNumber) {
    several->most = std::min(several->most, (length.most - others) / one.least);
  }
  // (ab)* with three characters: nothing, as a choice of none.
  if (several->least > several->most) *several = {.kind = NodeKind::kChoice};
  return true;
}

absl::StatusOr<GrammarBuilder::Expression> WriteOfLength(
    absl::Span<const PatternNode> parts, TextLength length,
    absl::FunctionRef<GrammarBuilder::Expression(const CharacterSet&)> write,
    GrammarBuilder* grammar) {
  return LengthProduct(parts, length).Write(write, grammar);
}

}  // namespace baton::router
