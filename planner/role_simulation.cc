#include "planner/role_simulation.h"

#include <algorithm>

namespace baton::planner {

using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

RoleSimulation::RoleSimulation(
    const ClusterProfile& profile, int32_t workers, int32_t first_prefill_roles,
    bool allow_local_prefill,
    absl::Span<const workload::PlannedRequest> requests,
    double itl_target_seconds)
    : decode_(profile.decode),
      requests_(requests),
      itl_target_(itl_target_seconds),
      told_(requests.size()) {
  load_.prefill_cost = profile.prefill.cost;
  load_.decode_cost = profile.decode.cost;
  load_.token_budget = profile.prefill.token_budget;
  load_.allow_local_prefill = allow_local_prefill;
  for (int32_t i = 0; i < workers; ++i) {
    workers_.push_back({.id = RouterSimulation::IdOf(static_cast<size_t>(i)),
                        .can_change = true,
                        .role = i < first_prefill_roles ? WorkerRole::kPrefill
                                                        : WorkerRole::kDecode});
  }
}

// Nothing is cached (FleetOptions::dual_workers).
void RoleSimulation::Began(uint32_t request, double now) {
  mix_.Began(now, {.computed_tokens = requests_[request].prompt_tokens,
                   .prompt_tokens = requests_[request].prompt_tokens,
                   .itl_target_seconds = itl_target_});
}

void RoleSimulation::Ended(uint32_t request, double now) {
  mix_.Ended(now, {.computed_tokens = requests_[request].prompt_tokens,
                   .prompt_tokens = requests_[request].prompt_tokens,
                   .output_tokens = requests_[request].output_tokens,
                   .itl_target_seconds = itl_target_,
                   .begun = true,
                   .told_tokens = told_[request]});
}

int32_t RoleSimulation::MostStreams(const scheduling::RequestMean& mix) const {
  const double tokens =
      static_cast<double>(decode_.total_blocks) * decode_.block_size;
  return static_cast<int32_t>(
      std::clamp(tokens / std::max(1.0, mix.final_context), 1.0,
                 static_cast<double>(decode_.max_sequences)));
}

std::vector<scheduling::RoleChange> RoleSimulation::Decide(
    const RouterSimulation& router, const FleetSimulation& fleet, double now) {
  next_ += 1;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const WorkerSnapshot& prefill = router.worker(i);
    const WorkerSnapshot& decode = router.worker(workers_.size() + i);
    workers_[i].queued_tokens = prefill.queued_tokens + prefill.placed_tokens;
    workers_[i].streams =
        decode.running + decode.waiting + decode.placed_sequences;
  }
  fleet.VisitOutputs(now, [&](uint32_t request, int32_t tokens) {
    mix_.Produced(now, requests_[request].prompt_tokens, told_[request],
                  tokens);
    told_[request] = tokens;
  });
  load_.mix = mix_.Mean(now);
  load_.most_streams = MostStreams(load_.mix);
  const std::vector<scheduling::RoleChange> changes =
      balance_.Decide({.now = now, .workers = workers_, .load = load_});
  for (const scheduling::RoleChange& change : changes) {
    workers_[change.worker].role = change.role;
    ++num_changes_;
  }
  return changes;
}

}  // namespace baton::planner
