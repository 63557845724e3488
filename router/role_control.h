// Which role the dual workers of a cluster should have, as far as this router
// can tell: from what its requests are like and what steps cost
// (scheduling/role_balance.h). It asks workers to change (SetRole); they say in
// their reports what they are, to all routers.
//
// Several routers may ask: with requests of the same kind, they want the same.
//
// Pure but for logging. Used by the router's loop thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "router/worker_registry.h"
#include "scheduling/request_mix.h"
#include "scheduling/role_balance.h"

namespace baton::router {

class RoleControl final {
 public:
  struct Options {
    // Off: roles stay as workers began.
    bool enabled = true;
    absl::Duration interval = absl::Seconds(1);
    // How long there may be no worker of a kind that nothing is served without
    // before one is asked for: after a start, they may be about to join. Less
    // than requests wait for one.
    absl::Duration join_grace = absl::Seconds(2);
    scheduling::RoleBalanceOptions balance;
  };

  // To be sent to a worker.
  struct Command {
    scheduling::WorkerId worker = scheduling::kNoWorker;
    v1::SetRole set_role;
  };

  // The registry outlives this.
  RoleControl(const Options& options, const WorkerRegistry* registry);

  // What becomes of requests, as RequestMix wants to hear of it.
  void Began(const scheduling::BegunRequest& request, absl::Time now);
  void Produced(int32_t prompt_tokens, int32_t before, int32_t after,
                absl::Time now);
  void Ended(const scheduling::EndedRequest& request, absl::Time now);

  // Who is to change now, mostly nobody. Does nothing before NextDue.
  std::vector<Command> Due(absl::Time now);
  // When to call Due; InfiniteFuture while there is no dual worker.
  absl::Time NextDue() const;

 private:
  scheduling::RoleLoad Load(absl::Time now) const;
  // Whether workers that nothing is served without may be about to join.
  bool MayStillJoin(absl::Span<const scheduling::RoleWorker> workers,
                    absl::Time now);

  const Options options_;
  const WorkerRegistry* const registry_;
  scheduling::RequestMix mix_;
  scheduling::RoleBalance balance_;
  absl::Time next_due_ = absl::InfinitePast();
  // Since when there are none of these.
  absl::Time none_since_ = absl::InfiniteFuture();
};

}  // namespace baton::router
