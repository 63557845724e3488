// The arguments of a call by the names of the parameters, as Python binds them.
//
// The thread of the values' Run.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

class Bound final {
 public:
  // Takes the arguments out of `args`. Fails, naming `function`, where there
  // are too many, an unknown one, or fewer than the first `required`.
  static absl::StatusOr<Bound> Bind(
      absl::string_view function, CallArgs& args,
      std::initializer_list<absl::string_view> parameters, size_t required);

  // Null where it was not given.
  const Value* Get(size_t i) const {
    return values_[i].has_value() ? &*values_[i] : nullptr;
  }
  // Null where it was not given or is None.
  const Value* GetUnlessNone(size_t i) const {
    const Value* const value = Get(i);
    return value == nullptr || value->is_none() ? nullptr : value;
  }

  // As a truth, a small integer or a string; `fallback` where not given.
  bool Truth(size_t i, bool fallback) const;
  absl::StatusOr<int64_t> Int(size_t i, int64_t fallback) const;
  absl::StatusOr<std::string> Text(size_t i, absl::string_view fallback) const;

 private:
  std::vector<std::optional<Value>> values_;
};

// The integer that a value is. Fails, as Python, for others: floats too.
absl::StatusOr<Integer> AsInteger(const Value& value);
// The same, cut to the range of an int64_t: for places and counts.
absl::StatusOr<int64_t> AsIndex(const Value& value);

}  // namespace baton::router::jinja
