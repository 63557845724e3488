// Which routers want this prefill worker paired with which decode workers, and
// what came of it. A router asks again when a pair fails: nothing is retried
// here, and nothing is kept of a pair that failed, since decode workers come
// and go for as long as this one lives.
//
// Used by the worker's loop thread only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "baton/v1/worker.pb.h"
#include "kv_transfer/handoff_sender.h"
#include "worker/publisher.h"
#include "worker/worker_metrics.h"

namespace baton::prefill_worker {

class Pairings final {
 public:
  // All outlive this.
  Pairings(kv_transfer::HandoffSender* sender, worker::Publisher* publisher,
           worker::WorkerMetrics* metrics)
      : sender_(sender), publisher_(publisher), metrics_(metrics) {}

  // A router asks; it is answered at once when the pair is ready.
  void Add(worker::SessionId session, const v1::Pair& pair);
  void OnReady(const kv_transfer::PeerReady& ready);
  void OnRefused(const kv_transfer::PeerRefused& refused);
  void OnMeasured(const kv_transfer::LinkMeasured& measured);
  void OnLost(const kv_transfer::PeerLost& lost);
  // Forgets what a router wanted.
  void OnSessionGone(worker::SessionId session);

 private:
  struct Wish {
    worker::SessionId session = 0;
    Incarnation decode{};
    std::string address;
  };

  void Report(const Wish& wish, bool paired, const std::string& reason);
  // Reports those as failed, and forgets them.
  template <typename Predicate>
  void Fail(Predicate failed, const std::string& reason);

  kv_transfer::HandoffSender* const sender_;
  worker::Publisher* const publisher_;
  worker::WorkerMetrics* const metrics_;
  std::vector<Wish> wishes_;
  // Of the workers that are paired.
  std::map<Incarnation, kv_transfer::LinkMeasured> links_;
};

}  // namespace baton::prefill_worker
