// JSON as a template sees it.
//
// The thread of the Run.
#pragma once

#include "absl/status/statusor.h"
#include "common/json.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// Objects keep the order of their keys. Text that is not UTF-8 is repaired
// (U+FFFD). Fails for what is nested too deeply or is too much.
absl::StatusOr<Value> FromJson(Run& run, const nlohmann::ordered_json& json);

}  // namespace baton::router::jinja
