// The transport between two processes of one host: memory passed by descriptor.
// When two peers connect, each sends the other descriptors of its registered
// regions, and the other maps them for reading. A payload is then a note of
// where it lies; the receiver asks its handler where to put it, copies it into
// its own memory, and says that it is done.
//
// Safe by construction: only the receiver writes to its memory, on its own
// thread, so that nothing lands late; nobody can write to the sender's memory
// nor shorten it under its reader; a killed sender's memory stays readable
// until it is unmapped; a dead peer is noticed at once. It exists only within
// one network namespace, between processes of one user.
//
// Threads: one progress thread per transport, which sleeps while there is
// nothing to do; other threads reach it through a bounded queue.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

struct LocalOptions {
  // Whether peers may connect to us (decode workers listen).
  bool listen = true;
  // The data address that peers are told, numeric; port 0 takes a free one. It
  // is only a name here: no port of the host is opened.
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // A connection that is not up by then is given up.
  absl::Duration connect_timeout = absl::Seconds(5);
  // How often OnTick comes.
  absl::Duration tick_interval = absl::Milliseconds(20);
  // Most connections at once, in either direction.
  uint32_t max_peers = 256;
  // At most 1024. More than elsewhere: what is on the wire is a note of where
  // bytes lie, and who waits for room must be woken, which takes as long as
  // copying half a payload. Other transfers wait behind it, a millisecond here.
  uint32_t max_sends_in_flight = 32;
  uint32_t max_sends_outstanding = 1024;
};

// Starts a transport. Errors name the address or the option: AlreadyExists
// (somebody listens for this address), InvalidArgument, ResourceExhausted.
absl::StatusOr<std::unique_ptr<Transport>> CreateLocalTransport(
    const LocalOptions& options);

}  // namespace baton::kv_transfer
