// Space of a file system for a file. Any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace baton::worker {

// Makes the file `bytes` long, and sets all of that aside where the file system
// can. ResourceExhausted where there is no room. It asks first: file systems
// give all that they have before they say so, and meanwhile nobody else on the
// machine has any.
absl::Status SetSpaceAside(int file, int64_t bytes);

}  // namespace baton::worker
