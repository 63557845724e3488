// The transport that a worker uses, by the name that an operator gives it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/nccl/communicator.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"

namespace baton::kv_transfer {

using MakeCommunicators =
    std::function<absl::StatusOr<std::unique_ptr<Communicators>>()>;

// `kind`: "local": peers on this host only, by memory; "tcp" and "ucx": all
// peers by that one; "auto": by memory where a peer is on this host and shares
// its memory, else by TCP, or by UCX where the peer speaks that alone or
// options.tls names more than tcp, such as devices for remote memory access.
// Who listens in this way takes all three, at one port; without memory, and
// with a line in the log, where that cannot be had. `options` hold for all, but
// max_sends_in_flight, of which memory has its own. "nccl": from the memory of
// one device to another's, with TCP beside it for everything else; regions are
// then a device's. With options.memory kCuda, "ucx" alone. `tls` holds for TCP;
// where it is required, "auto" does without UCX, and neither "ucx" nor "nccl"
// can be had.
// Errors as those of the transports and of `make_communicators`, which only
// "nccl" calls; InvalidArgument: no such kind, or not for this memory, or not
// with TLS.
absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(
    const std::string& kind, const UcxOptions& options,
    const MakeCommunicators& make_communicators = nullptr,
    const TcpTls& tls = {});

}  // namespace baton::kv_transfer
