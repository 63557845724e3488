// WorkerRegistry: the roles of dual workers.
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "router/worker_registry.h"

namespace baton::router {

using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

std::vector<WorkerRegistry::RoleState> WorkerRegistry::RoleStates() const {
  std::vector<RoleState> states;
  // By process: where the side that came first is.
  absl::flat_hash_map<uint64_t, size_t> first_sides;
  for (const Worker& worker : workers_) {
    if (!UsableInRole(worker)) continue;
    const WorkerSnapshot& snapshot = *Find(worker.id);
    RoleState state = {.id = worker.id, .role = worker.process_role};
    if (worker.role == WorkerRole::kPrefill) {
      state.queued_tokens = snapshot.queued_tokens;
    } else {
      state.streams = snapshot.running + snapshot.waiting;
    }
    const uint64_t process = worker.hello.process();
    if (process != 0) {
      const auto [it, first] = first_sides.try_emplace(process, states.size());
      if (!first) {
        RoleState& other = states[it->second];
        other.dual =
            other.dual || workers_[IndexOf(other.id)].role != worker.role;
        other.queued_tokens += state.queued_tokens;
        other.streams += state.streams;
        continue;
      }
    }
    states.push_back(state);
  }
  // Half of a dual worker, and not the half that serves.
  std::erase_if(states, [this](const RoleState& state) {
    const Worker& worker = workers_[IndexOf(state.id)];
    return !state.dual && worker.process_role != worker.role;
  });
  return states;
}

}  // namespace baton::router
