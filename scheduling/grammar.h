// What an answer may be: rules over bytes, as whoever reads a JSON schema or a
// regular expression writes them (router/output_format). A plain value; any
// thread. What may come next is scheduling/grammar_automaton.h's affair.
//
// A grammar is a list of expressions, each of which names others that stand
// before it, and a list of rules, each of which is one of the expressions.
// Rules may name each other in any order, and themselves; the first one is the
// whole answer.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::scheduling {

// Of one grammar.
inline constexpr uint32_t kMaxGrammarExpressions = 1u << 16;
inline constexpr uint32_t kMaxGrammarBytes = 1u << 20;  // of all literals
inline constexpr uint32_t kMaxGrammarDepth = 1000;  // of expressions in others
// As GrammarExpression::most: any number.
inline constexpr uint32_t kAnyNumber = UINT32_MAX;

using ByteSet = std::bitset<256>;

struct GrammarExpression {
  enum class Kind {
    kLiteral,   // these bytes
    kByte,      // one byte of a set
    kSequence,  // its parts, one after another; of none: nothing, which matches
    kChoice,    // one of its parts; of none: what never matches
    kRepeat,    // its one part, `least` to `most` times
    kRule,      // what a rule says
  };
  Kind kind = Kind::kLiteral;
  std::string literal;
  ByteSet bytes;
  std::vector<uint32_t> parts;  // expressions
  uint32_t least = 0;
  uint32_t most = 0;
  uint32_t rule = 0;

  friend bool operator==(const GrammarExpression&,
                         const GrammarExpression&) = default;
};

struct Grammar {
  std::vector<GrammarExpression> expressions;
  std::vector<uint32_t> rules;  // expressions

  friend bool operator==(const Grammar&, const Grammar&) = default;
};

// OK, or InvalidArgument that names the first expression or rule that is not as
// said above, or the bound that is passed. Of what came in a message.
absl::Status Validate(const Grammar& grammar);

// Writes a grammar.
class GrammarBuilder final {
 public:
  // Numbers of expressions.
  using Expression = uint32_t;
  using Rule = uint32_t;

  Expression Literal(absl::string_view bytes);
  Expression Byte(const ByteSet& bytes);
  // A byte from `first` to `last`.
  Expression ByteRange(uint8_t first, uint8_t last);
  Expression Sequence(absl::Span<const Expression> parts);
  Expression Choice(absl::Span<const Expression> parts);
  // REQUIRES: least <= most, most > 0.
  Expression Repeat(Expression part, uint32_t least, uint32_t most);
  Expression Optional(Expression part) { return Repeat(part, 0, 1); }
  Expression Call(Rule rule);

  // A rule whose expression comes later, by Define, once.
  Rule NewRule();
  void Define(Rule rule, Expression expression);

  // More than a grammar may have was asked for: what was built is not whole,
  // and it makes no sense to go on.
  bool full() const { return full_; }

  // ResourceExhausted when full. REQUIRES: there is a rule, and all are
  // defined. Nothing is called after it.
  absl::Status Build(Grammar* grammar);

 private:
  Expression Add(GrammarExpression expression);

  Grammar grammar_;
  std::vector<bool> defined_;
  uint32_t literal_bytes_ = 0;
  bool full_ = false;
};

}  // namespace baton::scheduling
