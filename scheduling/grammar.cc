#include "scheduling/grammar.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

using Kind = GrammarExpression::Kind;

absl::Status Wrong(size_t expression, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("expression ", expression, " ", what));
}

absl::Status CheckExpression(const Grammar& grammar, size_t number) {
  const GrammarExpression& e = grammar.expressions[number];
  for (const uint32_t part : e.parts) {
    if (part >= number) {
      return Wrong(number, absl::StrCat("names expression ", part,
                                        ", which does not stand before it"));
    }
  }
  switch (e.kind) {
    case Kind::kLiteral:
    case Kind::kSequence:
    case Kind::kChoice:
      return absl::OkStatus();
    case Kind::kByte:
      return e.bytes.any() ? absl::OkStatus() : Wrong(number, "has no bytes");
    case Kind::kRepeat:
      if (e.parts.size() != 1) return Wrong(number, "repeats not one part");
      if (e.least > e.most || e.most == 0) {
        return Wrong(number, absl::StrCat("repeats ", e.least, " to ", e.most,
                                          " times"));
      }
      return absl::OkStatus();
    case Kind::kRule:
      return e.rule < grammar.rules.size()
                 ? absl::OkStatus()
                 : Wrong(number, absl::StrCat("names rule ", e.rule, " of ",
                                              grammar.rules.size()));
  }
  return Wrong(number, "is of no kind");
}

}  // namespace

absl::Status Validate(const Grammar& grammar) {
  if (grammar.rules.empty()) {
    return absl::InvalidArgumentError("there is no rule");
  }
  if (grammar.expressions.size() > kMaxGrammarExpressions ||
      grammar.rules.size() > kMaxGrammarExpressions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there are ", grammar.expressions.size(), " expressions and ",
        grammar.rules.size(), " rules, of each at most ",
        kMaxGrammarExpressions, " are allowed"));
  }
  for (size_t i = 0; i < grammar.rules.size(); ++i) {
    if (grammar.rules[i] >= grammar.expressions.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("rule ", i, " is expression ", grammar.rules[i], " of ",
                       grammar.expressions.size()));
    }
  }
  size_t bytes = 0;
  size_t parts = 0;
  std::vector<uint32_t> depths;
  for (size_t i = 0; i < grammar.expressions.size(); ++i) {
    bytes += grammar.expressions[i].literal.size();
    parts += grammar.expressions[i].parts.size();
    if (bytes > kMaxGrammarBytes || parts > kMaxGrammarBytes) {
      return Wrong(i, absl::StrCat("and those before it have more than ",
                                   kMaxGrammarBytes, " bytes or parts"));
    }
    if (absl::Status valid = CheckExpression(grammar, i); !valid.ok()) {
      return valid;
    }
    uint32_t depth = 0;
    for (const uint32_t part : grammar.expressions[i].parts) {
      depth = std::max(depth, depths[part] + 1);
    }
    if (depth > kMaxGrammarDepth) {
      return Wrong(
          i, absl::StrCat("is nested more than ", kMaxGrammarDepth, " deep"));
    }
    depths.push_back(depth);
  }
  return absl::OkStatus();
}

GrammarBuilder::Expression GrammarBuilder::Add(GrammarExpression expression) {
  if (full_) return 0;
  literal_bytes_ += static_cast<uint32_t>(expression.literal.size() +
                                          expression.parts.size());
  if (grammar_.expressions.size() >= kMaxGrammarExpressions ||
      literal_bytes_ > kMaxGrammarBytes) {
    full_ = true;
    return 0;
  }
  grammar_.expressions.push_back(std::move(expression));
  return static_cast<Expression>(grammar_.expressions.size() - 1);
}

GrammarBuilder::Expression GrammarBuilder::Literal(absl::string_view bytes) {
  if (bytes.size() > kMaxGrammarBytes) {
    full_ = true;
    return 0;
  }
  GrammarExpression e;
  e.literal = std::string(bytes);
  return Add(std::move(e));
}

GrammarBuilder::Expression GrammarBuilder::Byte(const ByteSet& bytes) {
  CHECK(bytes.any());
  GrammarExpression e;
  e.kind = Kind::kByte;
  e.bytes = bytes;
  return Add(std::move(e));
}

GrammarBuilder::Expression GrammarBuilder::ByteRange(uint8_t first,
                                                     uint8_t last) {
  ByteSet bytes;
  for (int b = first; b <= last; ++b) bytes.set(static_cast<size_t>(b));
  return Byte(bytes);
}

GrammarBuilder::Expression GrammarBuilder::Sequence(
    absl::Span<const Expression> parts) {
  if (parts.size() == 1) return parts[0];
  GrammarExpression e;
  e.kind = Kind::kSequence;
  e.parts.assign(parts.begin(), parts.end());
  return Add(std::move(e));
}

GrammarBuilder::Expression GrammarBuilder::Choice(
    absl::Span<const Expression> parts) {
  if (parts.size() == 1) return parts[0];
  GrammarExpression e;
  e.kind = Kind::kChoice;
  e.parts.assign(parts.begin(), parts.end());
  return Add(std::move(e));
}

GrammarBuilder::Expression GrammarBuilder::Repeat(Expression part,
                                                  uint32_t least,
                                                  uint32_t most) {
  CHECK(least <= most && most > 0) << least << " to " << most;
  GrammarExpression e;
  e.kind = Kind::kRepeat;
  e.parts = {part};
  e.least = least;
  e.most = most;
  return Add(std::move(e));
}

GrammarBuilder::Expression GrammarBuilder::Call(Rule rule) {
  CHECK(rule < grammar_.rules.size() || full_) << rule;
  GrammarExpression e;
  e.kind = Kind::kRule;
  e.rule = rule;
  return Add(std::move(e));
}

GrammarBuilder::Rule GrammarBuilder::NewRule() {
  if (grammar_.rules.size() >= kMaxGrammarExpressions) {
    full_ = true;
    return 0;
  }
  grammar_.rules.push_back(0);
  defined_.push_back(false);
  return static_cast<Rule>(grammar_.rules.size() - 1);
}

void GrammarBuilder::Define(Rule rule, Expression expression) {
  if (full_) return;
  CHECK(rule < grammar_.rules.size() && !defined_[rule]) << rule;
  defined_[rule] = true;
  grammar_.rules[rule] = expression;
}

absl::Status GrammarBuilder::Build(Grammar* grammar) {
  if (full_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "has more parts than a grammar may have, ", kMaxGrammarExpressions));
  }
  CHECK(!grammar_.rules.empty());
  for (size_t i = 0; i < defined_.size(); ++i) {
    CHECK(defined_[i]) << "rule " << i;
  }
  *grammar = std::move(grammar_);
  return absl::OkStatus();
}

}  // namespace baton::scheduling
