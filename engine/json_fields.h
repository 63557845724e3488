// Typed, range-checked access to the fields of one JSON object. The first
// broken field is remembered; the getters after it return their defaults, so a
// loader reads all its fields in a row and asks status() once.
//
// One thread; used by the engine's loaders only.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/json.h"

namespace baton::engine {

class JsonFields final {
 public:
  // Errors start with "`file`: " and name a field as `prefix` + its name.
  // `object` must be an object and outlive this.
  JsonFields(std::string file, const nlohmann::json& object,
             std::string prefix = "");

  const absl::Status& status() const { return status_; }
  const std::string& file() const { return file_; }

  // Null when the field is absent or null.
  const nlohmann::json* Find(absl::string_view name) const;
  // Whether the field is there and null.
  bool IsNull(absl::string_view name) const;

  // A field that must be there.
  int32_t RequiredInt(absl::string_view name, int64_t min, int64_t max);
  // Absent and null give `fallback`.
  int32_t Int(absl::string_view name, int32_t fallback, int64_t min,
              int64_t max);
  double RequiredNumber(absl::string_view name, double min, double max);
  double Number(absl::string_view name, double fallback, double min,
                double max);
  bool Bool(absl::string_view name, bool fallback);
  std::string String(absl::string_view name, absl::string_view fallback);

  // Remembers an error unless there is one.
  void Fail(absl::Status error);
  // InvalidArgument: "FILE: NAME is VALUE, it must be WHAT".
  void FailField(absl::string_view name, const nlohmann::json& value,
                 absl::string_view must_be);
  // "FILE: NAME", for messages.
  std::string Where(absl::string_view name) const;

 private:
  void FailMissing(absl::string_view name);

  const std::string file_;
  const nlohmann::json& object_;
  const std::string prefix_;
  absl::Status status_;
};

// The value of an integer of any JSON kind that fits and is in [min, max].
bool JsonInt(const nlohmann::json& value, int64_t min, int64_t max,
             int64_t* out);

}  // namespace baton::engine
