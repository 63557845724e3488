#include "router/output_format/json_number.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::GrammarBuilder;

// Of what has no bound on a side but one on the other.
constexpr uint64_t kLargest = std::numeric_limits<int64_t>::max();

uint64_t Magnitude(int64_t value) {
  return value < 0 ? ~static_cast<uint64_t>(value) + 1
                   : static_cast<uint64_t>(value);
}

class NumberWriter final {
 public:
  explicit NumberWriter(GrammarBuilder* grammar)
      : grammar_(*grammar), digit_(grammar->ByteRange('0', '9')) {}

  // From `least` to `most`, without leading zeros. REQUIRES: least <= most.
  Expression Whole(uint64_t least, uint64_t most) {
    std::vector<Expression> choices;
    if (least == 0) {
      choices.push_back(grammar_.Literal("0"));
      if (most == 0) return choices[0];
      least = 1;
    }
    const std::string from = absl::StrCat(least);
    const std::string to = absl::StrCat(most);
    const auto digits = [](const std::string& text) {
      return static_cast<uint32_t>(text.size());
    };
    if (from.size() == to.size()) {
      choices.push_back(Between(from, to));
    } else {
      choices.push_back(AtLeast(from));
      if (to.size() - from.size() > 1) {
        choices.push_back(
            grammar_.Sequence({grammar_.ByteRange('1', '9'),
                               Digits(digits(from), digits(to) - 2)}));
      }
      choices.push_back(
          Between(absl::StrCat("1", std::string(to.size() - 1, '0')), to));
    }
    return grammar_.Choice(choices);
  }

  // A number without a sign and without bounds.
  Expression Any() {
    const Expression whole =
        grammar_.Choice({grammar_.Literal("0"),
                         grammar_.Sequence({grammar_.ByteRange('1', '9'),
                                            Digits(0, kMaxWholeDigits - 1)})});
    scheduling::ByteSet e;
    e.set('e').set('E');
    scheduling::ByteSet sign;
    sign.set('+').set('-');
    const Expression exponent = grammar_.Sequence(
        {grammar_.Byte(e), grammar_.Optional(grammar_.Byte(sign)),
         Digits(1, kMaxExponentDigits)});
    return grammar_.Sequence({whole,
                              grammar_.Optional(Fraction(kMaxFractionDigits)),
                              grammar_.Optional(exponent)});
  }

  // Without a sign: from `least` (not itself, if `above`) to `most`.
  void Positive(uint64_t least, bool above, std::optional<uint64_t> most,
                bool below, std::vector<Expression>* choices) {
    const uint64_t first = least + (above ? 1 : 0);
    const uint64_t end = most.value_or(kLargest);
    // Those that any fraction may follow.
    if (first < end) {
      choices->push_back(grammar_.Sequence(
          {Whole(first, end - 1),
           grammar_.Optional(Fraction(kMaxBoundedFractionDigits))}));
    }
    if (above && least < end) {
      choices->push_back(
          grammar_.Sequence({Exactly(least), FractionAboveZero()}));
    }
    if (!below && first <= end) {
      const Expression zeros =
          grammar_.Repeat(grammar_.Literal("0"), 1, kMaxBoundedFractionDigits);
      choices->push_back(grammar_.Sequence(
          {Exactly(end), grammar_.Optional(grammar_.Sequence(
                             {grammar_.Literal("."), zeros}))}));
    }
  }

 private:
  Expression Digits(uint32_t least, uint32_t most) {
    return most == 0 ? grammar_.Sequence({})
                     : grammar_.Repeat(digit_, least, most);
  }
  Expression Digits(size_t count) {
    return Digits(static_cast<uint32_t>(count), static_cast<uint32_t>(count));
  }
  Expression Exactly(uint64_t value) {
    return grammar_.Literal(absl::StrCat(value));
  }
  Expression Fraction(uint32_t digits) {
    return grammar_.Sequence({grammar_.Literal("."), Digits(1, digits)});
  }
  Expression FractionAboveZero() {
    const Expression zeros = grammar_.Repeat(grammar_.Literal("0"), 0,
                                             kMaxBoundedFractionDigits - 1);
    return grammar_.Sequence({grammar_.Literal("."), zeros,
                              grammar_.ByteRange('1', '9'),
                              Digits(0, kMaxBoundedFractionDigits - 1)});
  }

  // As many digits as `from` has, that are no less.
  Expression AtLeast(absl::string_view from) {
    if (from.find_first_not_of('0') == from.npos) return Digits(from.size());
    const uint8_t first = static_cast<uint8_t>(from[0]);
    std::vector<Expression> choices = {grammar_.Sequence(
        {grammar_.Literal(from.substr(0, 1)), AtLeast(from.substr(1))})};
    if (first < '9') {
      choices.push_back(grammar_.Sequence(
          {grammar_.ByteRange(first + 1, '9'), Digits(from.size() - 1)}));
    }
    return grammar_.Choice(choices);
  }

  // As many digits as `to` has, that are no more.
  Expression AtMost(absl::string_view to) {
    if (to.find_first_not_of('9') == to.npos) return Digits(to.size());
    const uint8_t first = static_cast<uint8_t>(to[0]);
    std::vector<Expression> choices = {grammar_.Sequence(
        {grammar_.Literal(to.substr(0, 1)), AtMost(to.substr(1))})};
    if (first > '0') {
      choices.push_back(grammar_.Sequence(
          {grammar_.ByteRange('0', first - 1), Digits(to.size() - 1)}));
    }
    return grammar_.Choice(choices);
  }

  // Of two numbers with as many digits, and all between them.
  Expression Between(absl::string_view from, absl::string_view to) {
    if (from.empty()) return grammar_.Sequence({});
    if (from[0] == to[0]) {
      return grammar_.Sequence({grammar_.Literal(from.substr(0, 1)),
                                Between(from.substr(1), to.substr(1))});
    }
    std::vector<Expression> choices = {
        grammar_.Sequence(
            {grammar_.Literal(from.substr(0, 1)), AtLeast(from.substr(1))}),
        grammar_.Sequence(
            {grammar_.Literal(to.substr(0, 1)), AtMost(to.substr(1))})};
    const uint8_t first = static_cast<uint8_t>(from[0] + 1);
    const uint8_t last = static_cast<uint8_t>(to[0] - 1);
    if (first <= last) {
      choices.push_back(grammar_.Sequence(
          {grammar_.ByteRange(first, last), Digits(from.size() - 1)}));
    }
    return grammar_.Choice(choices);
  }

  GrammarBuilder& grammar_;
  Expression digit_;
};

}  // namespace

Expression WriteIntegers(int64_t least, int64_t most, GrammarBuilder* grammar) {
  CHECK(least <= most) << least << " to " << most;
  NumberWriter writer(grammar);
  std::vector<Expression> choices;
  if (most >= 0) {
    choices.push_back(
        writer.Whole(Magnitude(std::max<int64_t>(least, 0)), Magnitude(most)));
  }
  if (least < 0) {
    choices.push_back(
        grammar->Sequence({grammar->Literal("-"),
                           writer.Whole(Magnitude(std::min<int64_t>(most, -1)),
                                        Magnitude(least))}));
  }
  return grammar->Choice(choices);
}

std::optional<Expression> WriteNumbers(const NumberBounds& bounds,
                                       GrammarBuilder* grammar) {
  NumberWriter writer(grammar);
  const auto& [least, above, most, below] = bounds;
  const bool allows_zero =
      (!least.has_value() || *least < 0 || (*least == 0 && !above)) &&
      (!most.has_value() || *most > 0 || (*most == 0 && !below));
  std::vector<Expression> choices;
  if (!most.has_value() && allows_zero) {
    choices.push_back(writer.Any());
  } else if (!most.has_value() || *most >= 0) {
    const bool from_zero = !least.has_value() || *least < 0;
    std::optional<uint64_t> up_to;
    if (most.has_value()) up_to = Magnitude(*most);
    writer.Positive(from_zero ? 0 : Magnitude(*least), !from_zero && above,
                    up_to, most.has_value() && below, &choices);
  }
  std::vector<Expression> negative;
  if (!least.has_value() && allows_zero) {
    negative.push_back(writer.Any());
  } else if (!least.has_value() || *least < 0) {
    const bool from_zero = !most.has_value() || *most >= 0;
    std::optional<uint64_t> up_to;
    if (least.has_value()) up_to = Magnitude(*least);
    // There is no -0.
    writer.Positive(from_zero ? 0 : Magnitude(*most), from_zero || below, up_to,
                    least.has_value() && above, &negative);
  }
  if (!negative.empty()) {
    choices.push_back(
        grammar->Sequence({grammar->Literal("-"), grammar->Choice(negative)}));
  }
  if (choices.empty()) return std::nullopt;
  return grammar->Choice(choices);
}

}  // namespace baton::router
