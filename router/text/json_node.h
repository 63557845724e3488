// A place in a parsed JSON file that knows its own name, so that every error
// says which field of which file is wrong.
//
// A view: the parsed document must outlive it. Any thread. Never throws.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json.h"

namespace baton::router {

// Reads and parses a JSON file. NotFound if there is none; InvalidArgument,
// naming the file, if it is too large, nested too deeply or not JSON.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path);
// The same from text that is there already; `name` is what errors call it.
absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         const std::string& name);

// The bytes of a file of at most `max_bytes`.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path,
                                          size_t max_bytes);

// The whole number in [0, max] that `value` is, or nothing.
std::optional<int64_t> WholeNumber(const nlohmann::json& value, int64_t max);

class JsonNode final {
 public:
  // The root of `file`'s document.
  JsonNode(const nlohmann::json* value, std::string file)
      : JsonNode(value, std::move(file), "") {}

  const nlohmann::json& value() const { return *value_; }

  // Whether the field is there and not null.
  bool Has(absl::string_view field) const;

  // The field, which must be there and not null.
  absl::StatusOr<JsonNode> Field(absl::string_view field) const;

  // The elements of this array.
  absl::StatusOr<std::vector<JsonNode>> Elements() const;

  absl::StatusOr<std::string> AsString() const;
  // A whole number in [0, max].
  absl::StatusOr<int64_t> AsCount(int64_t max) const;

  // Required fields.
  absl::StatusOr<std::string> String(absl::string_view field) const;
  absl::StatusOr<std::vector<JsonNode>> Array(absl::string_view field) const;
  absl::StatusOr<int64_t> Count(absl::string_view field, int64_t max) const;

  // Optional fields: `fallback` where the field is absent or null.
  absl::StatusOr<std::string> String(absl::string_view field,
                                     absl::string_view fallback) const;
  absl::StatusOr<bool> Bool(absl::string_view field, bool fallback) const;

  // InvalidArgument "FILE: PATH <what>".
  absl::Status Invalid(absl::string_view what) const;
  // Unimplemented "FILE: PATH.<field> is <value>, which is not supported".
  absl::Status Unsupported(absl::string_view field) const;

 private:
  JsonNode(const nlohmann::json* value, std::string file, std::string path)
      : value_(value), file_(std::move(file)), path_(std::move(path)) {}

  std::string PathOf(absl::string_view field) const;

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

}  // namespace baton::router
