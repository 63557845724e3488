// What the router of a simulated cluster knows of the workers, and where it
// sends requests: the placement policies of scheduling/, over a snapshot that
// is as old as the workers' reports, as a real router's is.
//
// Workers go by number: prefill workers from 0, decode workers behind them.
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/stable_hash.h"
#include "planner/prefix_chains.h"
#include "planner/profile.h"
#include "scheduling/placement.h"
#include "scheduling/prefix_index.h"
#include "scheduling/prefix_journal.h"

namespace baton::planner {

struct RouterSimulationOptions {
  int32_t num_prefill = 0;
  int32_t num_decode = 1;
  // One of scheduling::PlacementPolicyNames().
  std::string placement;
  // Whether a decode worker may compute prompts.
  bool allow_local_prefill = true;
  // As FleetOptions.
  bool dual_workers = false;
  int32_t first_prefill_roles = 0;
};

// What a worker reports.
struct SimulatedReport {
  // Gets new work: not, if it is the side of a dual worker with another role.
  bool usable = true;
  int32_t running = 0;
  int32_t waiting = 0;
  int32_t free_blocks = 0;
  int64_t queued_tokens = 0;
  int32_t queued_prompts = 0;
  int64_t context_tokens = 0;
  // What came to its prefix cache and went since the last report.
  scheduling::PrefixJournal::Changes prefixes;
};

// The virtual clock as scheduling/ has time.
inline absl::Time VirtualTime(double seconds) {
  return absl::UnixEpoch() + absl::Seconds(seconds);
}

class RouterSimulation final {
 public:
  // REQUIRES: the policy is known; at least one decode worker. `prefixes` of
  // the requests outlive this.
  RouterSimulation(const RouterSimulationOptions& options,
                   const ClusterProfile& profile, const PrefixChains& prefixes);

  static scheduling::WorkerId IdOf(size_t worker) {
    return scheduling::WorkerId{worker + 1};
  }
  static size_t NumberOf(scheduling::WorkerId id) {
    return static_cast<size_t>(id) - 1;
  }

  scheduling::PlacementVerdict Place(
      const scheduling::PlacementRequest& request, double now);

  // What workers are said to have of a prompt in their caches, of at most so
  // many tokens; as router/prefix_hints.h. Valid until the next call.
  absl::Span<const scheduling::CachedPrompt> Look(uint32_t request,
                                                  int32_t most, double now);

  // As router/worker_registry.h.
  void Reported(size_t worker, const SimulatedReport& report, double now);
  void PlacedDecode(size_t worker, int32_t blocks);
  void EndedDecode(size_t worker, int32_t blocks);
  // Of the worker that computes the prompt. Returns the number of its last
  // report, which EndedPrefill wants back.
  uint64_t PlacedPrefill(size_t worker, int32_t tokens);
  void EndedPrefill(size_t worker, int32_t tokens, uint64_t report);

  // Of a prompt on an idle worker, whichever is the fastest.
  double LeastPrefillSeconds(int32_t tokens) const;

  const scheduling::WorkerSnapshot& worker(size_t number) const {
    return cluster_.workers[number];
  }
  int64_t num_placements() const { return num_placements_; }

 private:
  const std::unique_ptr<const scheduling::PlacementPolicy> policy_;
  scheduling::ClusterSnapshot cluster_;
  std::vector<uint64_t> reports_;  // by worker, how many
  const PrefixChains& prefixes_;
  // Null: no request has a prefix.
  std::unique_ptr<scheduling::PrefixIndex> index_;
  // Of the last Look.
  std::vector<Hash128> names_;
  std::vector<scheduling::PrefixMatch> matches_;
  std::vector<scheduling::CachedPrompt> cached_;
  uint32_t looked_for_ = 0;
  double looked_at_ = -1;
  int64_t num_placements_ = 0;
};

}  // namespace baton::planner
