// Python's operators, attributes, items and calls, as the sandbox of Jinja
// allows them: attributes are a known method or a dict's key, nothing else.
//
// The thread of the Run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/ast.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

absl::StatusOr<Value> ApplyBinary(Run& run, BinaryOp op, const Value& left,
                                  const Value& right);
// `op` is '-' or '+'.
absl::StatusOr<Value> ApplyUnary(Run& run, char op, const Value& value);

// `object.name`; undefined where there is none.
absl::StatusOr<Value> GetAttribute(Run& run, const Value& object,
                                   absl::string_view name);
// `object[index]`; undefined where there is none.
absl::StatusOr<Value> GetItem(Run& run, const Value& object,
                              const Value& index);
// `object[start:stop:step]`; None for what is left out. Fails for what has no
// slices.
absl::StatusOr<Value> GetSlice(Run& run, const Value& object,
                               const Value& start, const Value& stop,
                               const Value& step);

absl::StatusOr<Value> CallValue(Run& run, const Value& callee, CallArgs args);
// `object.name(args)`.
absl::StatusOr<Value> CallMethod(Run& run, const Value& object,
                                 absl::string_view name, CallArgs args);

// What iterating over the value gives, one after the other; a generator has
// then given all. Fails for what cannot be iterated over: `prefix` is how the
// message begins, before the type.
absl::StatusOr<Values> Items(Run& run, const Value& value,
                             absl::string_view prefix = "");

// len(value).
absl::StatusOr<int64_t> Length(const Value& value);

}  // namespace baton::router::jinja
