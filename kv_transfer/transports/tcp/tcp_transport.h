// The transport over a TCP connection per peer: a frame is a few bytes of
// lengths, a header, and the payload as it lies in the sender's memory; the
// receiver asks its handler where to put it and reads it from the socket to
// there. The kernel copies each byte once on either side, and nobody else does,
// unless it is encrypted.
//
// Safe by construction: only the receiver's own thread writes to its memory, so
// that nothing lands late; what is refused is thrown away; a killed peer is
// noticed at once, and one whose host vanished after a while.
//
// For networks without remote memory access. One connection, served by one
// thread, per peer.
//
// Threads: one progress thread per transport, which sleeps while there is
// nothing to do; other threads reach it through a bounded queue.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "common/tls/pem_files.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// What properties and peers' properties are called, without TLS and with it.
inline constexpr char kTcpName[] = "tcp";
inline constexpr char kTcpTlsName[] = "tcp/tls";

// Encryption of connections, by TLS 1.3 with a certificate on both ends.
struct TcpTls {
  // The cluster's; null: all is plain text.
  std::shared_ptr<tls::PemFiles> files;
  // Connections that we make are TLS, and no others are taken. Off: those that
  // we make are plain text, and others are what their maker wants.
  bool required = true;

  bool is_required() const { return files != nullptr && required; }
};

struct TcpOptions {
  // Whether peers may connect to us (decode workers listen).
  bool listen = true;
  // Numeric address to listen on, and its port; 0 takes a free one.
  std::string listen_host = "127.0.0.1";
  uint16_t port = 0;
  // The host that peers are told to connect to; empty takes listen_host.
  // Needed when listening on all addresses (0.0.0.0, ::).
  std::string advertise_host;
  // A connection that is not up by then is given up.
  absl::Duration connect_timeout = absl::Seconds(5);
  // How often OnTick comes.
  absl::Duration tick_interval = absl::Milliseconds(20);
  // Most connections at once, in either direction.
  uint32_t max_peers = 256;
  uint32_t max_sends_in_flight = 16;
  uint32_t max_sends_outstanding = 1024;
  // Takes who connected but speaks another protocol, and what was read of him,
  // on the progress thread; absent: he is hung up on.
  std::function<void(ScopedFd socket, std::string said)> on_stranger;
  TcpTls tls;
};

// Starts a transport. Errors name the address or the option: AlreadyExists (the
// port is in use), FailedPrecondition (no such address here, or no permission),
// InvalidArgument, ResourceExhausted or Internal (no descriptors).
absl::StatusOr<std::unique_ptr<Transport>> CreateTcpTransport(
    const TcpOptions& options);

}  // namespace baton::kv_transfer
