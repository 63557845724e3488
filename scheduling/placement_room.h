// What placement policies share: how full workers are, by their last report and
// what was placed since, and which of them could take a request. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/log.h"
#include "scheduling/placement.h"

namespace baton::scheduling {

using Workers = std::vector<const WorkerSnapshot*>;

bool Contains(absl::Span<const WorkerId> ids, WorkerId id);

// Prompt tokens to be computed there.
int64_t QueuedTokens(const WorkerSnapshot& worker);
int32_t Sequences(const WorkerSnapshot& worker);
int32_t FreeBlocks(const WorkerSnapshot& worker);

// Whether it could hold a sequence of so many tokens when it is idle; now.
bool CouldEverHold(const WorkerSnapshot& worker, int32_t tokens);
bool DecodeHasRoom(const WorkerSnapshot& worker, int32_t tokens);
// An idle worker takes any prompt that it can hold, however long.
bool PrefillHasRoom(const WorkerSnapshot& worker, int32_t tokens);

// In [0, 2]: share of the blocks plus share of the sequence places.
double DecodeLoad(const WorkerSnapshot& worker);

// The prefill workers that may serve `decode`.
Workers PairedPrefill(const ClusterSnapshot& cluster,
                      const PlacementRequest& request, WorkerId decode);

// Of the link from `prefill` to `decode`, in bytes per second; 0: not measured.
double Bandwidth(const WorkerSnapshot& prefill, WorkerId decode);

// The least of `workers` by `load`; among equals, the one whose turn it is.
// REQUIRES: workers is not empty.
template <typename Load>
const WorkerSnapshot& Least(const Workers& workers, uint64_t round, Load load) {
  Workers least;
  for (const WorkerSnapshot* worker : workers) {
    if (!least.empty() && load(*worker) > load(*least.front())) continue;
    if (!least.empty() && load(*worker) < load(*least.front())) least.clear();
    least.push_back(worker);
  }
  CHECK(!least.empty());
  return *least[round % least.size()];
}

}  // namespace baton::scheduling
