// The transport that a worker uses, by the name that an operator gives it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"

namespace baton::kv_transfer {

// `kind`: "local": peers on this host only, by memory; "ucx": all peers by UCX;
// "auto": by memory where a peer is on this host and shares its memory, else by
// UCX; UCX alone, and a line in the log, when memory cannot be had.
// `options` hold for both. Errors as those of the transports; InvalidArgument:
// no such kind.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(
    const std::string& kind, const UcxOptions& options);

}  // namespace baton::kv_transfer
