// Errors that say which field of a request is wrong, in a way that programs can
// read. Pure; any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::router {

// InvalidArgument "<field> <problem>" that FieldOf gives `field` of. Cut where
// it is very long.
absl::Status InvalidField(absl::string_view field, absl::string_view problem);

// The same status, known to be about `field`.
absl::Status WithField(absl::string_view field, absl::Status status);

// The field that a status is about; empty when it is about none.
std::string FieldOf(const absl::Status& status);

// A field, or the beginning of its name, and what another API calls it.
struct FieldAlias {
  absl::string_view field;
  absl::string_view alias;
  // Nothing that comes after `field` means anything there.
  bool alone = false;
};

// The same status with its field called as the first alias that fits says, also
// where its message begins with it.
absl::Status WithFieldAlias(const absl::Status& status,
                            absl::Span<const FieldAlias> aliases);

}  // namespace baton::router
