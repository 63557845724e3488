// The leases of the routers: what a router asked for lives as long as the
// router is heard of. Renewed by gRPC's threads with every message, so however
// long the worker's step takes; read by the loop and by the hand-off's progress
// thread, which end what has run out.
//
// Threads: all functions from any thread; none blocks.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/clock.h"
#include "worker/control_outbox.h"

namespace baton::worker {

class SessionLeases final {
 public:
  explicit SessionLeases(const Clock* clock) : clock_(clock) {}

  // The session's lease from now on, within bounds; 0 takes the default (5 s).
  void Open(SessionId session, uint32_t lease_ms);
  // The router was heard of. No-op for a session that is closed.
  void Renew(SessionId session);
  void Close(SessionId session);

  // When the lease runs out; InfinitePast when the session is closed.
  absl::Time Until(SessionId session) const;

 private:
  struct Lease {
    absl::Duration length;
    absl::Time until;
  };

  const Clock* const clock_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<SessionId, Lease> leases_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::worker
