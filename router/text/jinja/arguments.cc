#include "router/text/jinja/arguments.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/run.h"

namespace baton::router::jinja {

absl::StatusOr<Bound> Bound::Bind(
    absl::string_view function, CallArgs& args,
    std::initializer_list<absl::string_view> parameters, size_t required) {
  const size_t count = parameters.size();
  if (args.positional.size() > count) {
    return Error(absl::StrCat(function, "() takes at most ", count,
                              " arguments (", args.positional.size(),
                              " given)"));
  }
  Bound bound;
  bound.values_.resize(count);
  for (size_t i = 0; i < args.positional.size(); ++i) {
    bound.values_[i] = std::move(args.positional[i]);
  }
  for (auto& [name, value] : args.named) {
    const auto it = std::find(parameters.begin(), parameters.end(), name);
    if (it == parameters.end()) {
      return Error(absl::StrCat(function,
                                "() got an unexpected keyword argument '",
                                ShortText(name), "'"));
    }
    std::optional<Value>& place =
        bound.values_[static_cast<size_t>(it - parameters.begin())];
    if (place.has_value()) {
      return Error(absl::StrCat(
          function, "() got multiple values for argument '", name, "'"));
    }
    place = std::move(value);
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound.values_[i].has_value()) continue;
    return Error(absl::StrCat(function, "() missing required argument: '",
                              *(parameters.begin() + i), "'"));
  }
  return bound;
}

bool Bound::Truth(size_t i, bool fallback) const {
  return Get(i) == nullptr ? fallback : jinja::Truth(*Get(i));
}

absl::StatusOr<int64_t> Bound::Int(size_t i, int64_t fallback) const {
  if (Get(i) == nullptr) return fallback;
  return AsIndex(*Get(i));
}

absl::StatusOr<std::string> Bound::Text(size_t i,
                                        absl::string_view fallback) const {
  const Value* const value = Get(i);
  if (value == nullptr) return std::string(fallback);
  if (value->is_undefined()) return value->UndefinedError();
  if (!value->is_string()) {
    return Error(
        absl::StrCat("expected a str, not '", value->type_name(), "'"));
  }
  return value->text();
}

absl::StatusOr<Integer> AsInteger(const Value& value) {
  if (value.is_integral()) return value.as_integer();
  if (value.is_undefined()) return value.UndefinedError();
  return Error(absl::StrCat("'", value.type_name(),
                            "' object cannot be interpreted as an integer"));
}

absl::StatusOr<int64_t> AsIndex(const Value& value) {
  BATON_ASSIGN_OR_RETURN(const Integer number, AsInteger(value));
  constexpr Integer kMin = std::numeric_limits<int64_t>::min() / 2;
  constexpr Integer kMax = std::numeric_limits<int64_t>::max() / 2;
  return static_cast<int64_t>(std::clamp(number, kMin, kMax));
}

}  // namespace baton::router::jinja
