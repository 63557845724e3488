#include "router/output_format/regular_expression.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/status_macros.h"
#include "router/output_format/regular_expression_parser.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

struct CharacterRangesLess {
  bool operator()(const CharacterSet::Ranges& a,
                  const CharacterSet::Ranges& b) const {
    return std::lexicographical_compare(
        a.begin(), a.end(), b.begin(), b.end(),
        [](const CharacterSet::Range& x, const CharacterSet::Range& y) {
          return x.first != y.first ? x.first < y.first : x.last < y.last;
        });
  }
};

// Whether the node is one certain character.
bool IsOneCharacter(const PatternNode& node) {
  const CharacterSet::Ranges& ranges = node.characters.ranges();
  return node.kind == PatternNode::Kind::kCharacter && ranges.size() == 1 &&
         ranges[0].first == ranges[0].last;
}

// The first ^ or $ in the nodes, or null.
const PatternNode* FindAnchor(absl::Span<const PatternNode> nodes) {
  for (const PatternNode& node : nodes) {
    if (node.kind == PatternNode::Kind::kBegin ||
        node.kind == PatternNode::Kind::kEnd) {
      return &node;
    }
    if (const PatternNode* found = FindAnchor(node.parts)) return found;
  }
  return nullptr;
}

class PatternWriter final {
 public:
  PatternWriter(Match match, Writing writing, TextLength length,
                GrammarBuilder* grammar)
      : match_(match), writing_(writing), length_(length), grammar_(grammar) {}

  absl::StatusOr<Expression> Run(const PatternNode& pattern) {
    BATON_RETURN_IF_ERROR(WriteAlternatives(
        pattern, {match_ == Match::kWhole, match_ == Match::kWhole}));
    return Join();
  }

 private:
  // Which ends of the text an alternative is bound to.
  struct Bound {
    bool begin = false;
    bool end = false;
  };

  absl::Status WriteAlternatives(const PatternNode& choice, Bound bound);
  absl::Status WriteOfBoundedLength(absl::Span<const PatternNode> parts,
                                    Bound bound);
  Expression Join();
  Expression WriteSequence(absl::Span<const PatternNode> parts);
  Expression Write(const PatternNode& node);
  Expression WriteSet(const CharacterSet& set);

  const Match match_;
  const Writing writing_;
  const TextLength length_;
  GrammarBuilder* const grammar_;
  std::vector<Expression> alternatives_[2][2];  // by Bound's begin and end
  std::vector<Expression> of_length_;           // those with a bounded length
  std::map<CharacterSet::Ranges, Expression, CharacterRangesLess>
      sets_;  // what was written for each
};

// The alternatives of a pattern, or of a group that is all of one: where ^ and
// $ may stand.
absl::Status PatternWriter::WriteAlternatives(const PatternNode& choice,
                                              Bound bound) {
  for (const PatternNode& alternative : choice.parts) {
    absl::Span<const PatternNode> parts = alternative.parts;
    Bound here = bound;
    for (; !parts.empty() && parts.front().kind == PatternNode::Kind::kBegin;
         parts.remove_prefix(1)) {
      here.begin = true;
    }
    for (; !parts.empty() && parts.back().kind == PatternNode::Kind::kEnd;
         parts.remove_suffix(1)) {
      here.end = true;
    }
    if (parts.size() == 1 && parts[0].kind == PatternNode::Kind::kChoice) {
      BATON_RETURN_IF_ERROR(WriteAlternatives(parts[0], here));
      continue;
    }
    if (const PatternNode* anchor = FindAnchor(parts)) {
      return UnknownInPattern(anchor->kind == PatternNode::Kind::kBegin
                                  ? "a ^ that is not at the beginning"
                                  : "a $ that is not at the end",
                              anchor->at);
    }
    if (!length_.any()) {
      BATON_RETURN_IF_ERROR(WriteOfBoundedLength(parts, here));
      continue;
    }
    alternatives_[here.begin][here.end].push_back(WriteSequence(parts));
  }
  return absl::OkStatus();
}

// With the text that may stand before and behind it, whose length counts.
absl::Status PatternWriter::WriteOfBoundedLength(
    absl::Span<const PatternNode> parts, Bound bound) {
  PatternNode any = {.kind = PatternNode::Kind::kRepeat, .most = kAnyNumber};
  any.parts.push_back({.kind = PatternNode::Kind::kCharacter,
                       .characters = CharacterSet::All()});
  std::vector<PatternNode> all;
  if (!bound.begin) all.push_back(any);
  all.insert(all.end(), parts.begin(), parts.end());
  if (!bound.end) all.push_back(any);
  const TextLength lengths = LengthsOf(all);
  if (lengths.least > length_.most || lengths.most < length_.least) {
    return absl::OkStatus();
  }
  if ((lengths.least >= length_.least && lengths.most <= length_.most) ||
      NarrowLength(length_, &all)) {
    of_length_.push_back(WriteSequence(all));
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(
      const Expression counted,
      WriteOfLength(
          all, length_,
          [this](const CharacterSet& set) { return WriteSet(set); }, grammar_));
  of_length_.push_back(counted);
  return absl::OkStatus();
}

// All alternatives, with any text where they are not bound.
Expression PatternWriter::Join() {
  std::vector<Expression> choices = of_length_;
  for (const bool begin : {false, true}) {
    for (const bool end : {false, true}) {
      const std::vector<Expression>& alternatives = alternatives_[begin][end];
      if (alternatives.empty()) continue;
      std::vector<Expression> parts = {grammar_->Choice(alternatives)};
      if (!begin || !end) {
        const Expression any =
            grammar_->Repeat(WriteSet(CharacterSet::All()), 0, kAnyNumber);
        if (!begin) parts.insert(parts.begin(), any);
        if (!end) parts.push_back(any);
      }
      choices.push_back(grammar_->Sequence(parts));
    }
  }
  return grammar_->Choice(choices);
}

Expression PatternWriter::WriteSequence(absl::Span<const PatternNode> parts) {
  std::vector<Expression> expressions;
  std::string literal;  // of characters one after another
  for (const PatternNode& part : parts) {
    if (IsOneCharacter(part)) {
      AppendCharacter(part.characters.ranges()[0].first, writing_, &literal);
      continue;
    }
    if (!literal.empty()) expressions.push_back(grammar_->Literal(literal));
    literal.clear();
    expressions.push_back(Write(part));
  }
  if (!literal.empty()) expressions.push_back(grammar_->Literal(literal));
  return grammar_->Sequence(expressions);
}

// REQUIRES: there is no ^ and no $ in the node.
Expression PatternWriter::Write(const PatternNode& node) {
  switch (node.kind) {
    case PatternNode::Kind::kCharacter:
      return WriteSet(node.characters);
    case PatternNode::Kind::kBegin:
    case PatternNode::Kind::kEnd:
      break;
    case PatternNode::Kind::kSequence:
      return WriteSequence(node.parts);
    case PatternNode::Kind::kChoice: {
      std::vector<Expression> choices;
      for (const PatternNode& part : node.parts) {
        choices.push_back(WriteSequence(part.parts));
      }
      return grammar_->Choice(choices);
    }
    case PatternNode::Kind::kRepeat:
      if (node.most == 0) break;
      return grammar_->Repeat(Write(node.parts[0]), node.least, node.most);
  }
  return grammar_->Sequence({});
}

Expression PatternWriter::WriteSet(const CharacterSet& set) {
  const auto known = sets_.find(set.ranges());
  if (known != sets_.end()) return known->second;
  const Expression written = WriteCharacter(set, writing_, grammar_);
  sets_.emplace(set.ranges(), written);
  return written;
}

}  // namespace

absl::StatusOr<Expression> WriteRegularExpression(absl::string_view pattern,
                                                  Match match, Writing writing,
                                                  GrammarBuilder* grammar,
                                                  TextLength length) {
  BATON_ASSIGN_OR_RETURN(const PatternNode all, ParsePattern(pattern));
  return PatternWriter(match, writing, length, grammar).Run(all);
}

}  // namespace baton::router
