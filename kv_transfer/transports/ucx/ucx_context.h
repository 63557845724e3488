// UCX's context, by the transports and the memory that a transport of ours is
// to have. Any thread; a context is used by one.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kv_transfer/transports/ucx/ucx_handles.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"

namespace baton::kv_transfer {

// UCX_TLS: the operator's, where there is one in the environment, else
// `options.tls` and what `options.memory` needs besides.
std::string UcxTransportList(const UcxOptions& options);

// FailedPrecondition, naming the list: UCX does not have these transports here,
// or reaches no memory of the kind by them.
absl::StatusOr<UcxContext> OpenUcxContext(const UcxOptions& options);

}  // namespace baton::kv_transfer
