#include "router/tool_calls/json_scanner.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "common/log.h"

namespace baton::router {

void AppendJsonByte(char c, bool in_string, std::string* out) {
  if (in_string && static_cast<unsigned char>(c) < 0x20) {
    absl::StrAppendFormat(out, "\\u%04x", c);
  } else {
    out->push_back(c);
  }
}

JsonScanner::Step JsonScanner::Go(State state) {
  state_ = state;
  return Step::kMore;
}

JsonScanner::Step JsonScanner::Take(char c) {
  if (state_ <= State::kAfterValue && IsJsonSpace(c)) return Step::kMore;
  switch (state_) {
    case State::kValue:
      return BeginValue(c);
    case State::kFirstElement:
      return c == ']' ? Close() : BeginValue(c);
    case State::kFirstKey:
      if (c == '}') return Close();
      [[fallthrough]];
    case State::kKey:
      return c == '"' ? BeginString(/*key=*/true) : Step::kBad;
    case State::kColon:
      return c == ':' ? Go(State::kValue) : Step::kBad;
    case State::kAfterValue: {
      const bool object = open_.back() == '{';
      if (c == ',') return Go(object ? State::kKey : State::kValue);
      return c == (object ? '}' : ']') ? Close() : Step::kBad;
    }
    case State::kString:
    case State::kEscape:
    case State::kHex:
      return TakeString(c);
    case State::kLiteral:
      return TakeLiteral(c);
    case State::kMinus:
    case State::kZero:
    case State::kInteger:
    case State::kPoint:
    case State::kFraction:
    case State::kExponent:
    case State::kExponentSign:
    case State::kExponentDigits:
      return TakeNumber(c);
  }
  LOG(FATAL) << "no such state";
}

JsonScanner::Step JsonScanner::BeginValue(char c) {
  switch (c) {
    case '{':
      return Open(c, State::kFirstKey);
    case '[':
      return Open(c, State::kFirstElement);
    case '"':
      return BeginString(/*key=*/false);
    case 't':
      literal_ = "rue";
      return Go(State::kLiteral);
    case 'f':
      literal_ = "alse";
      return Go(State::kLiteral);
    case 'n':
      literal_ = "ull";
      return Go(State::kLiteral);
    case '-':
      return Go(State::kMinus);
    case '0':
      return Go(State::kZero);
    default:
      return absl::ascii_isdigit(c) ? Go(State::kInteger) : Step::kBad;
  }
}

JsonScanner::Step JsonScanner::BeginString(bool key) {
  key_ = key;
  return Go(State::kString);
}

JsonScanner::Step JsonScanner::TakeString(char c) {
  if (state_ == State::kHex) {
    if (!absl::ascii_isxdigit(c)) return Step::kBad;
    return --hex_digits_ > 0 ? Step::kMore : Go(State::kString);
  }
  if (state_ == State::kEscape) {
    if (c == 'u') {
      hex_digits_ = 4;
      return Go(State::kHex);
    }
    const bool known = absl::StrContains("\"\\/bfnrt", c);
    return known ? Go(State::kString) : Step::kBad;
  }
  if (c == '\\') return Go(State::kEscape);
  if (c != '"') return Step::kMore;
  return key_ ? Go(State::kColon) : EndValue();
}

JsonScanner::Step JsonScanner::TakeLiteral(char c) {
  if (c != literal_.front()) return Step::kBad;
  literal_.remove_prefix(1);
  return literal_.empty() ? EndValue() : Step::kMore;
}

// -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
JsonScanner::Step JsonScanner::TakeNumber(char c) {
  const bool digit = absl::ascii_isdigit(c);
  const bool exponent = c == 'e' || c == 'E';
  switch (state_) {
    case State::kMinus:
      if (!digit) return Step::kBad;
      return Go(c == '0' ? State::kZero : State::kInteger);
    case State::kPoint:
      return digit ? Go(State::kFraction) : Step::kBad;
    case State::kExponent:
      if (c == '+' || c == '-') return Go(State::kExponentSign);
      [[fallthrough]];
    case State::kExponentSign:
      return digit ? Go(State::kExponentDigits) : Step::kBad;
    case State::kZero:
      if (digit) return Step::kBad;
      [[fallthrough]];
    case State::kInteger:
      if (c == '.') return Go(State::kPoint);
      [[fallthrough]];
    case State::kFraction:
      if (exponent) return Go(State::kExponent);
      [[fallthrough]];
    default:  // kExponentDigits
      if (digit) return Step::kMore;
  }
  // The byte belongs to what is around the number.
  if (EndValue() == Step::kLast) return Step::kPast;
  return Take(c);
}

JsonScanner::Step JsonScanner::Open(char bracket, State next) {
  if (open_.size() == kMaxDepth) return Step::kBad;
  open_.push_back(bracket);
  return Go(next);
}

JsonScanner::Step JsonScanner::Close() {
  open_.pop_back();
  return EndValue();
}

JsonScanner::Step JsonScanner::EndValue() {
  state_ = State::kAfterValue;
  return open_.empty() ? Step::kLast : Step::kMore;
}

}  // namespace baton::router
