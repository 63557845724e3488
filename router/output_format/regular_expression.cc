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
  PatternWriter(Match match, Writing writing, GrammarBuilder* grammar)
      : match_(match), writing_(writing), grammar_(grammar) {}

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
  Expression Join();
  Expression WriteSequence(absl::Span<const PatternNode> parts);
  Expression Write(const PatternNode& node);
  Expression WriteSet(const CharacterSet& set);

  const Match match_;
  const Writing writing_;
  GrammarBuilder* const grammar_;
  std::vector<Expression> alternatives_[2][2];  // by Bound's begin and end
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
    alternatives_[here.begin][here.end].push_back(WriteSequence(parts));
  }
  return absl::OkStatus();
}

// All alternatives, with any text where they are not bound.
Expression PatternWriter::Join() {
  std::vector<Expression> choices;
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
                                                  GrammarBuilder* grammar) {
  BATON_ASSIGN_OR_RETURN(const PatternNode all, ParsePattern(pattern));
  return PatternWriter(match, writing, grammar).Run(all);
}

}  // namespace baton::router
