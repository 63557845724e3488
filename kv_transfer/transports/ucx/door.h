// The port that peers know. UCX 1.13 aborts the process when anything but UCX
// talks to its listener (an HTTP request does), so that listener has a port of
// its own, which is open only while a peer that was let in is connecting
// (listener_gate.h). The door is plain TCP: who knocks with the right words
// learns that port, whoever else is hung up on.
//
//   client:  "baton kv door 1\n"                        16 bytes
//   server:  "baton kv door 1\n", port (little-endian)  18 bytes; then it
//   closes
// Port 0: no more connections are taken.
//
// Threads: the progress thread only. Nothing blocks.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/scoped_fd.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {

// The listening side.
class Door final {
 public:
  // AlreadyExists when the port is in use; names the address.
  static absl::StatusOr<Door> Open(const SocketAddress& address);
  // One with no socket of its own: visitors come by Admit only.
  Door() = default;
  Door(Door&&) = default;
  Door& operator=(Door&&) = default;

  uint16_t port() const { return port_; }

  // What to wait for.
  void AddPollFds(std::vector<pollfd>* fds) const;

  // Takes a visitor who came elsewhere and has said so much.
  void Admit(ScopedFd socket, std::string said, absl::Time now);

  // Accepts, reads and answers whatever is there. `let_in` is called for each
  // visitor with the right words and gives the port to tell, or 0.
  void Serve(absl::Time now, absl::FunctionRef<uint16_t()> let_in);

 private:
  struct Visitor {
    ScopedFd socket;
    std::string said;
    absl::Time deadline;
  };

  Door(ScopedFd socket, uint16_t port)
      : socket_(std::move(socket)), port_(port) {}
  // False when the visitor is to be hung up on.
  static bool ServeVisitor(Visitor& visitor,
                           absl::FunctionRef<uint16_t()> let_in);

  ScopedFd socket_;
  uint16_t port_ = 0;
  // Oldest first. Bounded: the oldest gives way.
  std::deque<Visitor> visitors_;
};

// The asking side: one attempt.
class Knock final {
 public:
  // Begins to connect. Unavailable when that fails at once.
  static absl::StatusOr<Knock> Begin(const SocketAddress& address);
  Knock(Knock&&) = default;
  Knock& operator=(Knock&&) = default;

  pollfd PollFd() const;

  // Goes on as far as it can. The port, or none yet, or why there is none:
  // Unavailable, ResourceExhausted (port 0), InvalidArgument (not a door).
  absl::StatusOr<std::optional<uint16_t>> Serve();

 private:
  explicit Knock(ScopedFd socket) : socket_(std::move(socket)) {}

  ScopedFd socket_;
  bool asked_ = false;
  std::string answer_;
};

}  // namespace baton::kv_transfer
