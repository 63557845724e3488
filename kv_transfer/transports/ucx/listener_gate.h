// Opens and closes a listening socket of this process that somebody else owns,
// and leaves the socket as it is: while it is closed, the kernel drops what
// would begin a connection. Connections that are there already stay.
//
// UCX 1.13 needs it: its listener must not be destroyed while a client is
// connecting, as connections that the listener accepted name it until the
// client's first message is complete, and a client may stand still in between
// for as long as it likes (uct/tcp/tcp_sockcm_ep.c, conn_request_cb). And it
// must not take strangers (door.h).
//
// Threads: one at a time.
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

class ListenerGate final {
 public:
  // Of no socket.
  ListenerGate() = default;

  // Finds the process's socket that listens on `address`, which outlives the
  // gate; others may have its port with another address, as those that UCX
  // opens for its devices.
  // The gate is open. NotFound; Unimplemented where sockets take no filter:
  // then it stays open.
  absl::Status Attach(const SocketAddress& address);

  // No-ops without a socket, and when that is so already. Where the system
  // refuses a filter, Close leaves the gate open and says so once; to be called
  // again.
  void Open();
  void Close();

  // Before the socket's owner goes: ends what came in by it, as the other side
  // could, and waits until the owner has closed all that, for `patience` at
  // most. Calls `progress` in between. False when some is left.
  bool EndConnections(absl::Duration patience,
                      absl::FunctionRef<void()> progress) const;

 private:
  int socket_ = -1;
  SocketAddress address_;
  bool filters_ = false;
  bool closed_ = false;
  bool refused_ = false;  // a filter, and that was said
};

}  // namespace baton::kv_transfer
