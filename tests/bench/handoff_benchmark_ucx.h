// What UCX reaches by itself: its own benchmark, ucx_perftest, as two
// processes. One thread.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace baton::kv_transfer {

// Bytes per second of active messages of `message_bytes` over loopback TCP, in
// the environment that our UCX transport sets for itself. NotFound: it is not
// installed (Debian: ucx-utils).
absl::StatusOr<double> UcxActiveMessageBandwidth(uint64_t message_bytes);

}  // namespace baton::kv_transfer
