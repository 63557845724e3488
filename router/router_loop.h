// The router's loop: one thread that owns the requests and the cluster.
//
//   drain inbox -> take what happened -> advance workers and timers ->
//   place -> publish
#pragma once

#include <atomic>
#include <functional>

#include "absl/time/time.h"
#include "common/clock.h"
#include "router/cluster.h"
#include "router/request_flow.h"
#include "router/router_inbox.h"
#include "router/serving_state.h"

namespace baton::router {

class RouterLoop final {
 public:
  // Called on the loop thread when what the router serves has changed.
  using ServingChanged = std::function<void(const Serving&)>;

  // How long running requests may go on after RequestDrain.
  struct Options {
    absl::Duration drain = absl::Seconds(10);
  };

  // Everything outlives the loop.
  RouterLoop(const Options& options, RouterInbox* inbox, Cluster* cluster,
             RequestFlow* flow, ServingState* state,
             ServingChanged serving_changed, const Clock* clock);

  // Takes turns until drained. When it returns, every request has ended and the
  // inbox is closed.
  void Run();

  // One turn; waits for events until something is due, at most `max_wait`.
  // False, without doing anything: drained. By the thread that runs the loop.
  bool Turn(absl::Duration max_wait);

  // Ends Run: nothing new is admitted, what runs goes on within the bound. Any
  // thread.
  void RequestDrain();

 private:
  void Take(RouterEvent event, absl::Time now);
  void PublishServing();
  bool Drained(absl::Time now);
  void RefuseTheRest();

  const Options options_;
  RouterInbox* const inbox_;
  Cluster* const cluster_;
  RequestFlow* const flow_;
  ServingState* const state_;
  const ServingChanged serving_changed_;
  const Clock* const clock_;

  std::atomic<bool> drain_requested_{false};
  // The loop thread's own.
  absl::Time drain_deadline_ = absl::InfiniteFuture();
  // When something is due although no event comes.
  absl::Time next_due_ = absl::InfinitePast();
};

}  // namespace baton::router
