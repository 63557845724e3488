// Which side of a dual worker gets new requests: its role. Routers ask for a
// change (SetRole); reports of the other side say that it stands by. What runs
// there goes on until it ends. Prompts come to a worker that decoded when its
// streams are over, or after a minute.
//
// Used by the worker's loop thread only.
#pragma once

#include <optional>
#include <string>

#include "absl/time/time.h"
#include "baton/v1/peer.pb.h"
#include "baton/v1/worker.pb.h"
#include "common/clock.h"
#include "common/metrics/metrics.h"

namespace baton::worker {

// "prefill" or "decode", for labels and logs.
const char* RoleLabel(v1::WorkerRole role);

class RoleSwitch final {
 public:
  // After a change, none to prefill is taken for so long: routers that do not
  // agree would have it go back and forth. One to decode always is, since
  // without a decode worker nobody is served.
  static constexpr absl::Duration kLeastTime = absl::Seconds(2);

  // All outlive this. `first`: prefill or decode.
  RoleSwitch(v1::WorkerRole first, metrics::Metrics* metrics,
             const Clock* clock);

  v1::WorkerRole role() const { return role_; }
  // Whether new requests should not come to that side (scheduling::TakesWork).
  bool standby(v1::WorkerRole side) const;

  // What a router asks for; `reason` is for the log. Whether that is the role
  // now.
  bool Set(v1::WorkerRole role, const std::string& reason);

  // The side of the other role has nothing left to do, or again something.
  void ObserveStandby(bool empty);

 private:
  void ShowRole();

  metrics::Metrics* const metrics_;
  const Clock* const clock_;
  v1::WorkerRole role_;
  absl::Time changed_at_ = absl::InfinitePast();
  // Since when what runs on the other side is awaited.
  std::optional<absl::Time> leaving_since_;
  prometheus::Histogram* const switch_seconds_;
};

// A router's SetRole; `roles` null: the worker has one side only.
void TakeSetRole(const v1::SetRole& wish, RoleSwitch* roles);

}  // namespace baton::worker
