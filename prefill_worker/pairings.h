// Which routers want this prefill worker paired with which decode workers, and
// the tries to get there.
//
// Used by the worker's loop thread only.
#pragma once

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/v1/worker.pb.h"
#include "kv_transfer/handoff_sender.h"
#include "worker/publisher.h"

namespace baton::prefill_worker {

class Pairings final {
 public:
  // Both outlive this.
  Pairings(kv_transfer::HandoffSender* sender, worker::Publisher* publisher)
      : sender_(sender), publisher_(publisher) {}

  // A router asks; it is answered at once when the pair is ready.
  void Add(worker::SessionId session, const v1::Pair& pair, absl::Time now);
  void OnReady(const kv_transfer::PeerReady& ready);
  void OnRefused(const kv_transfer::PeerRefused& refused, absl::Time now);
  void OnLost(const kv_transfer::PeerLost& lost, absl::Time now);
  // Forgets what a router wanted.
  void OnSessionGone(worker::SessionId session);
  // Tries again what failed, with growing pauses, a bounded number of times: a
  // decode worker that is gone for good is not called for ever, and one that
  // comes back is announced by the router anew.
  void Retry(absl::Time now);

 private:
  struct Wish {
    worker::SessionId session = 0;
    Incarnation decode{};
    std::string address;
    bool ready = false;
    int tries = 0;
    absl::Time next_try = absl::InfiniteFuture();
  };

  void Try(Wish* wish, absl::Time now);
  void ScheduleRetry(Wish* wish, absl::Time now);
  void Report(const Wish& wish, bool paired, const std::string& reason);

  kv_transfer::HandoffSender* const sender_;
  worker::Publisher* const publisher_;
  std::vector<Wish> wishes_;
};

}  // namespace baton::prefill_worker
