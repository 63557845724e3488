// Filters that make numbers, and `default`.

#include <cmath>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

// Decimal places beyond which rounding changes nothing.
constexpr int64_t kMaxPlaces = 400;

absl::StatusOr<Value> Default(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("default", args, {"value", "default_value", "boolean"}, 1));
  const Value& value = *bound.Get(0);
  const bool is_missing =
      value.is_undefined() || (bound.Truth(2, false) && !Truth(value));
  if (!is_missing) return value;
  if (bound.Get(1) != nullptr) return *bound.Get(1);
  return run.String("");
}

// The integer that a float stands for, or nothing.
std::optional<Integer> Truncated(double number) {
  if (!std::isfinite(number) || std::abs(number) > 1e38) return std::nullopt;
  return static_cast<Integer>(number);
}

// int(value), as far as it succeeds.
absl::StatusOr<std::optional<Integer>> ToInteger(const Value& value,
                                                 int64_t base) {
  if (value.is_integral()) return std::optional<Integer>(value.as_integer());
  if (value.is_float()) return Truncated(value.as_double());
  if (value.is_undefined()) return value.UndefinedError();
  if (!value.is_string()) return std::optional<Integer>();
  bool too_large = false;
  if (base < 0 || base > 36) return std::optional<Integer>();
  std::optional<Integer> number =
      ParseInteger(value.text(), static_cast<int>(base), &too_large);
  if (too_large) return Error("an integer is too large");
  if (number.has_value()) return number;
  // "42.23" is 42.
  const std::optional<double> as_float = ParseFloat(value.text());
  return as_float.has_value() ? Truncated(*as_float) : std::optional<Integer>();
}

absl::StatusOr<Value> Int(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("int", args, {"value", "default", "base"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t base, bound.Int(2, 10));
  const Value& value = *bound.Get(0);
  BATON_RETURN_IF_ERROR(
      run.SpendText(value.is_string() ? 16 * value.text().size() : 0));
  BATON_ASSIGN_OR_RETURN(const std::optional<Integer> number,
                         ToInteger(value, base));
  if (number.has_value()) return Value::Int(*number);
  return bound.Get(1) == nullptr ? Value::Int(0) : *bound.Get(1);
}

absl::StatusOr<Value> Float(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("float", args, {"value", "default"}, 1));
  const Value& value = *bound.Get(0);
  BATON_RETURN_IF_ERROR(
      run.SpendText(value.is_string() ? 16 * value.text().size() : 0));
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_number()) return Value::Float(value.as_double());
  if (value.is_string()) {
    if (const auto number = ParseFloat(value.text())) {
      return Value::Float(*number);
    }
  }
  return bound.Get(1) == nullptr ? Value::Float(0) : *bound.Get(1);
}

absl::StatusOr<Value> Abs(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("abs", args, {"x"}, 1));
  const Value& value = *bound.Get(0);
  if (value.is_undefined()) return value.UndefinedError();
  if (value.is_float()) return Value::Float(std::abs(value.as_double()));
  if (!value.is_integral()) {
    return Error(
        absl::StrCat("bad operand type for abs(): '", value.type_name(), "'"));
  }
  if (value.as_integer() >= 0) return Value::Int(value.as_integer());
  return ApplyUnary(run, '-', value);
}

// round(number, places) of a float: the decimal number with so many places that
// is nearest to the exact value of the float, ties to even.
double RoundFloat(double number, int64_t places) {
  if (!std::isfinite(number) || places > kMaxPlaces) return number;
  if (places < -kMaxPlaces) return std::copysign(0.0, number);
  if (places < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-places));
    return std::nearbyint(number / unit) * unit;
  }
  // The C library rounds decimal digits correctly.
  std::string text(static_cast<size_t>(places) + 400, '\0');
  std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(places),
                number);
  return std::strtod(text.c_str(), nullptr);
}

// round(number, places) of an integer for negative places, ties to even.
Integer RoundInteger(Integer number, int64_t places) {
  if (places >= 0) return number;
  Integer unit = 1;
  for (int64_t i = 0; i < -places; ++i) {
    if (__builtin_mul_overflow(unit, Integer{10}, &unit)) return 0;
  }
  const Integer half = unit / 2;
  Integer rest = number % unit;
  if (rest < 0) rest += unit;
  const Integer down = number - rest;
  const bool up = rest > half || (rest == half && (down / unit) % 2 != 0);
  return up ? down + unit : down;
}

absl::StatusOr<Value> Round(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("round", args, {"value", "precision", "method"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t places, bound.Int(1, 0));
  BATON_ASSIGN_OR_RETURN(const std::string method, bound.Text(2, "common"));
  const Value& value = *bound.Get(0);
  if (value.is_undefined()) return value.UndefinedError();
  if (!value.is_number()) {
    return Error(absl::StrCat("type ", value.type_name(),
                              " doesn't define __round__ method"));
  }
  if (method == "common") {
    if (value.is_float()) {
      return Value::Float(RoundFloat(value.as_double(), places));
    }
    return Value::Int(RoundInteger(value.as_integer(), places));
  }
  if (method != "ceil" && method != "floor") {
    return Error("method must be common, ceil or floor");
  }
  const double unit = std::pow(10.0, static_cast<double>(places));
  const double scaled = value.as_double() * unit;
  if (!std::isfinite(scaled) || unit == 0) {
    return Error("cannot convert float infinity to integer");
  }
  return Value::Float(
      (method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / unit);
}

}  // namespace

void AddNumberFilters(Filters* filters) {
  for (const auto& [name, filter] :
       {std::make_pair("default", &Default), std::make_pair("d", &Default),
        std::make_pair("int", &Int), std::make_pair("float", &Float),
        std::make_pair("abs", &Abs), std::make_pair("round", &Round)}) {
    filters->emplace(name, filter);
  }
}

}  // namespace baton::router::jinja
