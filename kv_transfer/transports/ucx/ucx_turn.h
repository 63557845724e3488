// Keeps UCX workers of one process from getting each other's events.
//
// UCX 1.13 knows sockets by their numbers. What its own thread hears of one
// while the worker's thread is busy waits until that worker makes progress;
// when the socket was closed meanwhile, and its number is that of another
// worker's new one, UCX ends the process (ucs/async/async.c,
// __ucs_async_poll_missed: "Assertion `handler->async == async' failed"). So no
// worker makes a socket while another may have closed one and not made progress
// since.
//
// What is left is a connection that UCX's thread accepts in the microseconds
// between such a close and the progress that comes next.
//
// Threads: one that makes progress, each its own turn.
#pragma once

#include "absl/functional/function_ref.h"

namespace baton::kv_transfer {

// While it lives, its thread may close sockets of its worker; not across a
// Pause, a Rest or MakeSockets: progress comes first.
class UcxTurn final {
 public:
  UcxTurn();
  ~UcxTurn();
  UcxTurn(const UcxTurn&) = delete;
  UcxTurn& operator=(const UcxTurn&) = delete;

  // Lets others make sockets who wait for it.
  void Pause();
  // The same for as long as `wait` takes.
  void Rest(absl::FunctionRef<void()> wait);
  // Calls `make`, which makes sockets, when no other has a turn.
  void MakeSockets(absl::FunctionRef<void()> make);
};

// MakeSockets of a thread that has no turn.
void MakeUcxSockets(absl::FunctionRef<void()> make);

}  // namespace baton::kv_transfer
