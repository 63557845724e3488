// Reads the fields of a JSON object that came from outside. A field that is
// absent or null gives nothing; one of another type or out of range gives an
// InvalidArgument that names it (router/invalid_field.h).
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router::http {

namespace json = boost::json;

// The object that `body` is. InvalidArgument for what is not JSON, is nested
// deeper than 64, or is not an object.
absl::StatusOr<json::object> ParseJsonObject(absl::string_view body);

class JsonFields final {
 public:
  // `object` outlives the reader. `where` stands before the names in errors:
  // "stream_options." or nothing.
  explicit JsonFields(const json::object* object, std::string where = "")
      : object_(object), where_(std::move(where)) {}

  // Null when absent or null.
  const json::value* Find(absl::string_view name) const;

  // A whole number in [min, max]; 3.0 is one.
  absl::StatusOr<std::optional<int64_t>> Int(absl::string_view name,
                                             int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view name) const;
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view name) const;
  absl::StatusOr<std::optional<std::string>> String(
      absl::string_view name) const;

  // "stream_options.include_usage".
  std::string FullName(absl::string_view name) const;

 private:
  const json::object* object_;
  std::string where_;
};

// A whole number of `value`, if it is one.
std::optional<int64_t> WholeNumber(const json::value& value);

// "a string", "an array": for errors.
const char* TypeName(const json::value& value);

}  // namespace baton::router::http
