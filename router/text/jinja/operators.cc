#include "router/text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

absl::string_view SymbolOf(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      return "** or pow()";
  }
  return "";
}

absl::Status TooLarge() {
  return Error("an integer is too large: it would need more than 128 bits");
}

absl::StatusOr<Value> IntegerPower(Integer base, Integer exponent) {
  if (exponent < 0) {
    if (base == 0) return Error("0.0 cannot be raised to a negative power");
    return Value::Float(
        std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  if (base == 1 || base == 0 || base == -1) {
    if (exponent == 0) return Value::Int(1);
    return Value::Int(base == -1 && exponent % 2 == 0 ? Integer{1} : base);
  }
  Integer result = 1;
  for (Integer i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) return TooLarge();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> OnIntegers(BinaryOp op, Integer a, Integer b) {
  Integer result = 0;
  bool overflow = false;
  switch (op) {
    case BinaryOp::kAdd:
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case BinaryOp::kSubtract:
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case BinaryOp::kMultiply:
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case BinaryOp::kDivide:
      if (b == 0) return Error("division by zero");
      return Value::Float(static_cast<double>(a) / static_cast<double>(b));
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      if (b == 0) return Error("integer division or modulo by zero");
      // The one quotient that does not fit: the smallest integer by -1.
      if (b == -1) {
        if (op == BinaryOp::kModulo) return Value::Int(0);
        overflow = __builtin_sub_overflow(Integer{0}, a, &result);
        break;
      }
      const Integer rest = a % b;
      const bool round_down = rest != 0 && (rest < 0) != (b < 0);
      result = op == BinaryOp::kModulo ? (round_down ? rest + b : rest)
                                       : a / b - (round_down ? 1 : 0);
      break;
    }
    case BinaryOp::kPower:
      return IntegerPower(a, b);
  }
  if (overflow) return TooLarge();
  return Value::Int(result);
}

// Python's modulo: of the divisor's sign.
double FloatModulo(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
  } else if (rest == 0) {
    rest = std::copysign(0.0, b);
  }
  return rest;
}

double FloatFloorDivide(double a, double b) {
  const double quotient = (a - FloatModulo(a, b)) / b;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floor = std::floor(quotient);
  return quotient - floor > 0.5 ? floor + 1 : floor;
}

absl::StatusOr<Value> OnFloats(BinaryOp op, double a, double b) {
  switch (op) {
    case BinaryOp::kAdd:
      return Value::Float(a + b);
    case BinaryOp::kSubtract:
      return Value::Float(a - b);
    case BinaryOp::kMultiply:
      return Value::Float(a * b);
    case BinaryOp::kDivide:
      if (b == 0) return Error("float division by zero");
      return Value::Float(a / b);
    case BinaryOp::kFloorDivide:
      if (b == 0) return Error("float floor division by zero");
      return Value::Float(FloatFloorDivide(a, b));
    case BinaryOp::kModulo:
      if (b == 0) return Error("float modulo");
      return Value::Float(FloatModulo(a, b));
    case BinaryOp::kPower:
      break;
  }
  if (a == 0 && b < 0) return Error("0.0 cannot be raised to a negative power");
  if (a < 0 && std::isfinite(b) && std::floor(b) != b) {
    return Error("complex numbers are not supported");
  }
  const double power = std::pow(a, b);
  if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) {
    return Error("Numerical result out of range");
  }
  return Value::Float(power);
}

absl::StatusOr<Value> AddStrings(Run& run, const Value& a, const Value& b) {
  const bool safe = a.is_safe() || b.is_safe();
  const auto part = [&](const Value& each) {
    return safe && !each.is_safe() ? EscapeHtml(each.text()) : each.text();
  };
  BATON_RETURN_IF_ERROR(run.CheckLength(a.text().size() + b.text().size()));
  if (safe) return run.String(part(a) + part(b), /*safe=*/true);
  return run.String(absl::StrCat(a.text(), b.text()));
}

bool AreLists(const Value& a, const Value& b, SequenceType type) {
  return a.is_sequence_of(type) && b.is_sequence_of(type);
}

absl::StatusOr<Value> Repeat(Run& run, const Value& what, Integer times) {
  const size_t size =
      what.is_string() ? what.text().size() : what.sequence().items.size();
  if (times <= 0 || size == 0) times = size == 0 ? 1 : 0;
  constexpr Integer kMost = Integer{1} << 32;
  const auto count = static_cast<uint64_t>(std::min(times, kMost));
  if (what.is_string()) {
    BATON_RETURN_IF_ERROR(run.CheckLength(size * count));
    std::string text;
    text.reserve(size * count);
    for (uint64_t i = 0; i < count; ++i) text += what.text();
    return run.String(std::move(text), what.is_safe());
  }
  BATON_RETURN_IF_ERROR(run.CheckRoom(size * count, sizeof(Value)));
  Values items;
  items.reserve(size * count);
  for (uint64_t i = 0; i < count; ++i) {
    const Values& once = what.sequence().items;
    items.insert(items.end(), once.begin(), once.end());
  }
  return run.Sequence(what.sequence().type, std::move(items));
}

bool CanRepeat(const Value& value) {
  return value.is_string() || value.is_sequence_of(SequenceType::kList) ||
         value.is_sequence_of(SequenceType::kTuple);
}

absl::StatusOr<Value> Add(Run& run, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return AddStrings(run, a, b);
  for (const SequenceType type : {SequenceType::kList, SequenceType::kTuple}) {
    if (!AreLists(a, b, type)) continue;
    const Values& left = a.sequence().items;
    const Values& right = b.sequence().items;
    BATON_RETURN_IF_ERROR(
        run.CheckRoom(left.size() + right.size(), sizeof(Value)));
    Values items;
    items.reserve(left.size() + right.size());
    items.insert(items.end(), left.begin(), left.end());
    items.insert(items.end(), right.begin(), right.end());
    return run.Sequence(type, std::move(items));
  }
  if (a.is_string() || a.is_sequence_of(SequenceType::kList) ||
      a.is_sequence_of(SequenceType::kTuple)) {
    const absl::string_view type = a.is_string() ? "str" : a.type_name();
    return Error(absl::StrCat("can only concatenate ", type, " (not \"",
                              b.type_name(), "\") to ", type));
  }
  return Error(absl::StrCat("unsupported operand type(s) for +: '",
                            a.type_name(), "' and '", b.type_name(), "'"));
}

}  // namespace

absl::StatusOr<Value> ApplyBinary(Run& run, BinaryOp op, const Value& left,
                                  const Value& right) {
  if (left.is_undefined()) return left.UndefinedError();
  if (op == BinaryOp::kModulo && left.is_string()) {
    return FormatPercent(run, left, right);
  }
  if (right.is_undefined()) return right.UndefinedError();
  if (left.is_integral() && right.is_integral()) {
    return OnIntegers(op, left.as_integer(), right.as_integer());
  }
  if (left.is_number() && right.is_number()) {
    return OnFloats(op, left.as_double(), right.as_double());
  }
  if (op == BinaryOp::kAdd) return Add(run, left, right);
  if (op == BinaryOp::kMultiply) {
    if (CanRepeat(left) && right.is_integral()) {
      return Repeat(run, left, right.as_integer());
    }
    if (left.is_integral() && CanRepeat(right)) {
      return Repeat(run, right, left.as_integer());
    }
  }
  return Error(absl::StrCat("unsupported operand type(s) for ", SymbolOf(op),
                            ": '", left.type_name(), "' and '",
                            right.type_name(), "'"));
}

absl::StatusOr<Value> ApplyUnary(Run& run, char op, const Value& value) {
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_float()) {
    return Value::Float(op == '-' ? -value.as_double() : value.as_double());
  }
  if (!value.is_integral()) {
    return Error(absl::StrCat("bad operand type for unary ", std::string(1, op),
                              ": '", value.type_name(), "'"));
  }
  Integer result = value.as_integer();
  if (op == '-' && __builtin_sub_overflow(Integer{0}, result, &result)) {
    return TooLarge();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> CallValue(Run& run, const Value& callee, CallArgs args) {
  if (callee.is_undefined()) return callee.UndefinedError();
  if (callee.is_object()) return callee.object()->Call(run, std::move(args));
  return Error(
      absl::StrCat("'", callee.type_name(), "' object is not callable"));
}

absl::StatusOr<int64_t> Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return value.text_length();
    case Kind::kSequence:
      if (value.sequence().type == SequenceType::kGenerator) break;
      return static_cast<int64_t>(value.sequence().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().entries.size());
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kObject:
      break;
  }
  return Error(
      absl::StrCat("object of type '", value.type_name(), "' has no len()"));
}

absl::StatusOr<Values> Items(Run& run, const Value& value,
                             absl::string_view prefix) {
  Values items;
  switch (value.kind()) {
    case Kind::kUndefined:
      return items;
    case Kind::kString: {
      BATON_RETURN_IF_ERROR(
          run.CheckRoom(static_cast<uint64_t>(value.text_length()),
                        sizeof(Value) + 2 * kStringOverhead));
      items.reserve(static_cast<size_t>(value.text_length()));
      for (const char32_t c : Decode(value.text())) {
        BATON_ASSIGN_OR_RETURN(Value one,
                               run.String(Encode(std::u32string_view(&c, 1))));
        items.push_back(std::move(one));
      }
      return items;
    }
    case Kind::kSequence: {
      const SequenceRep& sequence = value.sequence();
      const size_t left = sequence.items.size() - sequence.taken;
      BATON_RETURN_IF_ERROR(run.Spend(1 + static_cast<int64_t>(left / 4)));
      BATON_RETURN_IF_ERROR(run.CheckRoom(left, sizeof(Value)));
      items.assign(
          sequence.items.begin() + static_cast<ptrdiff_t>(sequence.taken),
          sequence.items.end());
      if (sequence.type == SequenceType::kGenerator) {
        sequence.taken = sequence.items.size();
      }
      return items;
    }
    case Kind::kDict: {
      const auto& entries = value.dict().entries;
      BATON_RETURN_IF_ERROR(
          run.Spend(1 + static_cast<int64_t>(entries.size() / 4)));
      BATON_RETURN_IF_ERROR(run.CheckRoom(entries.size(), sizeof(Value)));
      items.reserve(entries.size());
      for (const auto& entry : entries) items.push_back(entry.first);
      return items;
    }
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kObject:
      break;
  }
  if (!prefix.empty()) {
    return Error(absl::StrCat(prefix, value.type_name(), " object"));
  }
  return Error(
      absl::StrCat("'", value.type_name(), "' object is not iterable"));
}

}  // namespace baton::router::jinja
