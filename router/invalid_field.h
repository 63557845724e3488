// Errors that say which field of a request is wrong, in a way that programs can
// read. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::router {

// InvalidArgument "<field> <problem>" that FieldOf gives `field` of. Cut where
// it is very long.
absl::Status InvalidField(absl::string_view field, absl::string_view problem);

// The same status, known to be about `field`.
absl::Status WithField(absl::string_view field, absl::Status status);

// The field that a status is about; empty when it is about none.
std::string FieldOf(const absl::Status& status);

}  // namespace baton::router
