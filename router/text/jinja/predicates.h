// Jinja's tests: `value is defined`, `value is divisibleby 3`, ...
//
// The thread of the Run.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

bool IsTest(absl::string_view name);

// Whether args.positional[0] passes the test `name`, given the other arguments.
// Fails where there is no such test. REQUIRES: there is a first argument.
absl::StatusOr<bool> ApplyTest(Run& run, absl::string_view name, CallArgs args);

}  // namespace baton::router::jinja
