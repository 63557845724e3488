#include "scheduling/placement_room.h"

#include <algorithm>

namespace baton::scheduling {

bool Contains(absl::Span<const WorkerId> ids, WorkerId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

int64_t QueuedTokens(const WorkerSnapshot& worker) {
  return std::max<int64_t>(0, worker.queued_tokens + worker.placed_tokens);
}

int32_t Sequences(const WorkerSnapshot& worker) {
  return std::max(0, worker.running + worker.waiting + worker.placed_sequences);
}

int32_t FreeBlocks(const WorkerSnapshot& worker) {
  return std::min(worker.total_blocks,
                  worker.free_blocks - worker.placed_blocks);
}

bool CouldEverHold(const WorkerSnapshot& worker, int32_t tokens) {
  return tokens <= worker.max_context &&
         BlocksFor(tokens, worker.block_size) <= worker.total_blocks;
}

bool DecodeHasRoom(const WorkerSnapshot& worker, int32_t tokens) {
  return Sequences(worker) < worker.max_sequences &&
         BlocksFor(tokens, worker.block_size) <= FreeBlocks(worker);
}

bool PrefillHasRoom(const WorkerSnapshot& worker, int32_t tokens) {
  const int64_t queued = QueuedTokens(worker);
  return worker.max_queued_tokens == 0 || queued == 0 ||
         queued + tokens <= worker.max_queued_tokens;
}

double DecodeLoad(const WorkerSnapshot& worker) {
  const double blocks =
      1.0 - static_cast<double>(FreeBlocks(worker)) / worker.total_blocks;
  return blocks + static_cast<double>(Sequences(worker)) / worker.max_sequences;
}

Workers PairedPrefill(const ClusterSnapshot& cluster,
                      const PlacementRequest& request, WorkerId decode) {
  Workers paired;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (worker.role == WorkerRole::kPrefill && worker.usable &&
        Contains(worker.paired_with, decode) &&
        !Contains(request.excluded, worker.id) &&
        CouldEverHold(worker, request.prefill_tokens)) {
      paired.push_back(&worker);
    }
  }
  return paired;
}

double Bandwidth(const WorkerSnapshot& prefill, WorkerId decode) {
  for (size_t i = 0; i < prefill.link_bandwidth.size(); ++i) {
    if (prefill.paired_with[i] == decode) return prefill.link_bandwidth[i];
  }
  return 0;
}

}  // namespace baton::scheduling
