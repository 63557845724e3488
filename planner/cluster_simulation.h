// A cluster under a virtual clock: a router and its workers serve a workload,
// event by event. The router's waiting line, the placement policies, admission
// and the order of prompts are those of scheduling/; steps take what the
// profile says; a worker's steps between two events are taken at once
// (decode_simulation.h).
//
// What is simulated: queues, batches, chunked prefill, KV blocks, transfers
// that overlap with computing and share their workers' networks, prefix caches
// of requests that say what they begin with, load reports every 100 ms. What is
// not: failures, the way of messages, clients that go away.
//
// The same options and requests give the same result. Pure; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "planner/profile.h"
#include "planner/simulation_result.h"
#include "workload/goodput.h"
#include "workload/planned_request.h"

namespace baton::planner {

struct SimulationOptions {
  ClusterProfile profile;
  int32_t num_prefill = 1;
  int32_t num_decode = 1;
  // One of scheduling::PlacementPolicyNames().
  std::string placement = "cost-model";
  // Whether a decode worker may compute prompts.
  bool allow_local_prefill = true;
  // All workers have both sides (dual_worker/), and roles that change as
  // scheduling/role_balance.h says; num_prefill and num_decode are those that
  // they begin with. No prefix caches then. Approximate: how the sides share a
  // device (device_side.h).
  bool dual_workers = false;
  workload::Targets targets;
  // Most tokens in a worker's prefix cache, which has what KV memory its
  // sequences leave; 0: no caches.
  int64_t prefix_cache_tokens = std::numeric_limits<int64_t>::max();
  // A request that takes longer has failed.
  double timeout_seconds = 600;
  // Ends when more requests than that have missed their targets.
  int64_t most_misses = std::numeric_limits<int64_t>::max();
  // An experiment, which the product has nothing of (docs/adr/0032): of each
  // prompt of kLeastSplitPrompt tokens or more that a prefill worker is to
  // compute, the share that the decode worker computes, the last part. In [0,
  // 1); without prefix caches only.
  double split_share = 0;
  // Off: each step of each worker is an event; for tests.
  bool fast_forward = true;
};

// OK, or InvalidArgument naming the field.
absl::Status Validate(const SimulationOptions& options);

// `requests` are in the order of their times, and come during `window`.
// REQUIRES: the options are valid; fewer than 2^32 requests.
SimulationResult Simulate(const SimulationOptions& options,
                          absl::Span<const workload::PlannedRequest> requests,
                          absl::Duration window);

}  // namespace baton::planner
