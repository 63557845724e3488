// WorkerRegistry: the roles of dual workers.
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "router/worker_registry.h"

namespace baton::router {

using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

std::vector<WorkerRegistry::RoleState> WorkerRegistry::RoleStates() const {
  std::vector<RoleState> states;
  // By process: where the side that came first is, and whether it stands by.
  absl::flat_hash_map<uint64_t, std::pair<size_t, bool>> first_sides;
  for (const Worker& worker : workers_) {
    if (!UsableInRole(worker)) continue;
    const WorkerSnapshot& snapshot = *Find(worker.id);
    RoleState state = {.id = worker.id, .role = worker.role};
    if (worker.role == WorkerRole::kPrefill) {
      state.queued_tokens = snapshot.queued_tokens;
    } else {
      state.streams = snapshot.running;
    }
    const uint64_t process = worker.hello.process();
    if (process != 0) {
      const auto [it, first] =
          first_sides.try_emplace(process, states.size(), worker.standby);
      if (!first) {
        RoleState& other = states[it->second.first];
        if (other.role == worker.role) continue;  // named twice
        other.dual = true;
        other.queued_tokens += state.queued_tokens;
        other.streams += state.streams;
        if (it->second.second) other.role = worker.role;
        continue;
      }
    }
    states.push_back(state);
  }
  // Half of a dual worker, and not the half that serves.
  size_t kept = 0;
  for (size_t i = 0; i < states.size(); ++i) {
    const int index = IndexOf(states[i].id);
    if (!states[i].dual && workers_[index].standby) continue;
    states[kept++] = states[i];
  }
  states.resize(kept);
  return states;
}

}  // namespace baton::router
