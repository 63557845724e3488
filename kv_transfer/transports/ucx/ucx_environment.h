// The UCX_* settings of a process. See PrepareUcxEnvironment in ucx_transport.h
// for when.
#pragma once

namespace baton::kv_transfer {

// Does the work of PrepareUcxEnvironment. Not thread-safe.
void SetUcxEnvironment();

}  // namespace baton::kv_transfer
