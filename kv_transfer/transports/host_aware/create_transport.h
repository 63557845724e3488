// The transport that a worker uses, by the name that an operator gives it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"

namespace baton::kv_transfer {

// `kind`: "local": peers on this host only, by memory; "tcp" and "ucx": all
// peers by that one; "auto": by memory where a peer is on this host and shares
// its memory, else by TCP, or by UCX where the peer speaks that alone or
// options.tls names more than tcp, such as devices for remote memory access.
// Who listens in this way takes all three, at one port; without memory, and
// with a line in the log, where that cannot be had. `options` hold for all, but
// max_sends_in_flight, of which memory has its own.
// Errors as those of the transports; InvalidArgument: no such kind.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(
    const std::string& kind, const UcxOptions& options);

}  // namespace baton::kv_transfer
