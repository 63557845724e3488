// Stream sockets that do not block. Any thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/scoped_fd.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

struct TcpListener {
  ScopedFd socket;
  uint16_t port = 0;
};

// Port 0 takes a free one. AlreadyExists when the port is in use,
// FailedPrecondition when the address is not of this machine or the port is for
// others, Internal without descriptors; errors name the address.
absl::StatusOr<TcpListener> ListenTcp(const SocketAddress& address);

// Begins to connect; the socket can be written to when that has ended.
// Unavailable when it fails at once, ResourceExhausted without descriptors.
absl::StatusOr<ScopedFd> BeginConnectTcp(const SocketAddress& address);

// How it ended. Unavailable: nobody listens there, or nothing leads there.
absl::Status ConnectResult(int socket);

// What send or recv came to, right after it: how many bytes; 0 when the socket
// is full, or empty, for now. Unavailable: the connection broke, or, where
// there is nothing more to receive, the peer hung up.
absl::StatusOr<uint64_t> SentBytes(ssize_t result);
absl::StatusOr<uint64_t> ReceivedBytes(ssize_t result);

}  // namespace baton::kv_transfer
