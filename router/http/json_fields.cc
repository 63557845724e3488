#include "router/http/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parse.hpp>

#include "absl/strings/str_cat.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

constexpr size_t kMaxDepth = 64;

}  // namespace

absl::StatusOr<json::object> ParseJsonObject(absl::string_view body) {
  json::parse_options options;
  options.max_depth = kMaxDepth;
  boost::json::error_code error;
  json::value value = json::parse(json::string_view(body.data(), body.size()),
                                  error, {}, options);
  if (error) {
    return absl::InvalidArgumentError(
        absl::StrCat("the body is not JSON: ", error.message()));
  }
  if (!value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the body must be a JSON object, it is ", TypeName(value)));
  }
  return std::move(value.as_object());
}

const char* TypeName(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
      return "an integer";
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "an array";
    case json::kind::object:
      return "an object";
  }
  return "something else";
}

std::optional<int64_t> WholeNumber(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_uint64()) return std::nullopt;  // beyond int64
  if (!value.is_double()) return std::nullopt;
  const double number = value.get_double();
  // 2^53: beyond it a double may stand for its neighbours.
  if (number != std::floor(number) || std::abs(number) > 9007199254740992.0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(number);
}

std::string JsonFields::FullName(absl::string_view name) const {
  return absl::StrCat(where_, name);
}

const json::value* JsonFields::Find(absl::string_view name) const {
  const json::value* value =
      object_->if_contains(json::string_view(name.data(), name.size()));
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::StatusOr<std::optional<int64_t>> JsonFields::Int(absl::string_view name,
                                                       int64_t min,
                                                       int64_t max) const {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = WholeNumber(*value);
  if (!number.has_value() && !value->is_uint64()) {
    return InvalidField(
        FullName(name),
        absl::StrCat("must be an integer, it is ", TypeName(*value)));
  }
  if (!number.has_value() || *number < min || *number > max) {
    return InvalidField(
        FullName(name),
        absl::StrCat("is ",
                     number.has_value() ? absl::StrCat(*number)
                                        : absl::StrCat(value->get_uint64()),
                     ", it must be in [", min, ", ", max, "]"));
  }
  return number;
}

absl::StatusOr<std::optional<double>> JsonFields::Number(
    absl::string_view name) const {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_int64()) return static_cast<double>(value->get_int64());
  if (value->is_uint64()) return static_cast<double>(value->get_uint64());
  if (value->is_double()) return value->get_double();
  return InvalidField(FullName(name), absl::StrCat("must be a number, it is ",
                                                   TypeName(*value)));
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(
    absl::string_view name) const {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  return InvalidField(FullName(name), absl::StrCat("must be a boolean, it is ",
                                                   TypeName(*value)));
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(
    absl::string_view name) const {
  const json::value* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) {
    const json::string& text = value->get_string();
    return std::string(text.data(), text.size());
  }
  return InvalidField(FullName(name), absl::StrCat("must be a string, it is ",
                                                   TypeName(*value)));
}

}  // namespace baton::router::http
