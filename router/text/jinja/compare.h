// How Python compares values: ==, <, in, and what may be a dict's key.
//
// Pure functions; the thread of the values' Run.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// Whether Python takes the value for true.
bool Truth(const Value& value);

// a == b. Not bounded by a Run: for keys and scalars. See Equals.
bool Equal(const Value& a, const Value& b);

// a == b, paid for by the run.
absl::StatusOr<bool> Equals(Run& run, const Value& a, const Value& b);

// a < b, or another order. Fails, as Python does, for values of kinds that have
// none.
enum class Order { kLess, kLessOrEqual, kGreater, kGreaterOrEqual };
absl::StatusOr<bool> IsOrdered(Run& run, Order order, const Value& a,
                               const Value& b);
inline absl::StatusOr<bool> Less(Run& run, const Value& a, const Value& b) {
  return IsOrdered(run, Order::kLess, a, b);
}

// `item in container`.
absl::StatusOr<bool> Contains(Run& run, const Value& container,
                              const Value& item);

// Equal values have equal hashes. Nothing for what Python cannot hash.
std::optional<uint64_t> HashOf(const Value& value);

// Of several entries with one key, leaves the first with the last one's value.
// Fails where a key cannot be hashed.
absl::Status MergeEqualKeys(std::vector<DictRep::Entry>* entries);

}  // namespace baton::router::jinja
