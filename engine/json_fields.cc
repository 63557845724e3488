#include "engine/json_fields.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "engine/json_file.h"

namespace baton::engine {

using nlohmann::json;

JsonFields::JsonFields(std::string file, const json& object, std::string prefix)
    : file_(std::move(file)), object_(object), prefix_(std::move(prefix)) {
  CHECK(object_.is_object());
}

const json* JsonFields::Find(absl::string_view name) const {
  const auto it = object_.find(std::string(name));
  if (it == object_.end() || it->is_null()) return nullptr;
  return &*it;
}

bool JsonFields::IsNull(absl::string_view name) const {
  const auto it = object_.find(std::string(name));
  return it != object_.end() && it->is_null();
}

int32_t JsonFields::RequiredInt(absl::string_view name, int64_t min,
                                int64_t max) {
  if (Find(name) == nullptr) FailMissing(name);
  return Int(name, static_cast<int32_t>(min), min, max);
}

int32_t JsonFields::Int(absl::string_view name, int32_t fallback, int64_t min,
                        int64_t max) {
  DCHECK_GE(min, std::numeric_limits<int32_t>::min());
  DCHECK_LE(max, std::numeric_limits<int32_t>::max());
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  int64_t result = 0;
  if (!JsonInt(*value, min, max, &result)) {
    FailField(name, *value, absl::StrCat("an integer from ", min, " to ", max));
    return fallback;
  }
  return static_cast<int32_t>(result);
}

double JsonFields::RequiredNumber(absl::string_view name, double min,
                                  double max) {
  if (Find(name) == nullptr) FailMissing(name);
  return Number(name, min, min, max);
}

double JsonFields::Number(absl::string_view name, double fallback, double min,
                          double max) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_number()) {
    const double result = value->get<double>();
    if (result >= min && result <= max) return result;  // false for NaN
  }
  FailField(name, *value, absl::StrCat("a number from ", min, " to ", max));
  return fallback;
}

bool JsonFields::Bool(absl::string_view name, bool fallback) {
  const json* value = Find(name);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  FailField(name, *value, "true or false");
  return fallback;
}

std::string JsonFields::String(absl::string_view name,
                               absl::string_view fallback) {
  const json* value = Find(name);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  FailField(name, *value, "a string");
  return std::string(fallback);
}

void JsonFields::Fail(absl::Status error) { status_.Update(std::move(error)); }

void JsonFields::FailField(absl::string_view name, const json& value,
                           absl::string_view must_be) {
  Fail(absl::InvalidArgumentError(absl::StrCat(
      Where(name), " is ", JsonExcerpt(value), ", it must be ", must_be)));
}

void JsonFields::FailMissing(absl::string_view name) {
  Fail(absl::InvalidArgumentError(absl::StrCat(Where(name), " is missing")));
}

std::string JsonFields::Where(absl::string_view name) const {
  return absl::StrCat(file_, ": ", prefix_, name);
}

bool JsonInt(const json& value, int64_t min, int64_t max, int64_t* out) {
  if (value.is_number_unsigned()) {
    const uint64_t unsigned_value = value.get<uint64_t>();
    if (unsigned_value >
        static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return false;
    }
    *out = static_cast<int64_t>(unsigned_value);
  } else if (value.is_number_integer()) {
    *out = value.get<int64_t>();
  } else {
    return false;
  }
  return *out >= min && *out <= max;
}

}  // namespace baton::engine
