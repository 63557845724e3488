// What the parts of the emulated runtime share. For emulated_runtime.cc
// (streams, graphs, ranks) and emulated_memory.cc (devices and their memory).
#pragma once

#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/synchronization/mutex.h"

namespace baton::engine::cuda::emulated {

// All there is, streams and events included, is under one lock: a thread at a
// time runs something, whichever stream it belongs to.
ABSL_CONST_INIT extern absl::Mutex runtime_mu;

// The device of the calling thread.
int32_t CurrentDevice();

// Whether some device may wait for what that one has not been given yet. The
// lock is held.
bool IsWaitedFor(int32_t device);

}  // namespace baton::engine::cuda::emulated
