// The methods of strings, lists and dicts that templates may call. Those that
// would change a value are forbidden, as in Jinja's immutable sandbox.
//
// The thread of the Run.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

bool HasMethod(const Value& object, absl::string_view name);
bool IsForbiddenMethod(const Value& object, absl::string_view name);

// REQUIRES: HasMethod(self, name). Takes what it needs out of `args`.
absl::StatusOr<Value> CallBuiltinMethod(Run& run, const Value& self,
                                        absl::string_view name, CallArgs& args);

// The methods of str; for methods.cc.
using Method = absl::StatusOr<Value> (*)(Run& run, const Value& self,
                                         CallArgs& args);
Method FindStringMethod(absl::string_view name);

}  // namespace baton::router::jinja
