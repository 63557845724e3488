#include "router/worker_snapshot.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

namespace baton::router {
namespace {

using scheduling::WorkerSnapshot;

int32_t Clamped(uint64_t value) {
  return static_cast<int32_t>(
      std::min<uint64_t>(value, std::numeric_limits<int32_t>::max()));
}

// Nothing takes less than no time, or more than an hour.
double Sane(double seconds) {
  return seconds > 0 ? std::min(seconds, 3600.0) : 0.0;  // NaN is not
}

scheduling::StepCost CostOf(const v1::StepCost& cost) {
  return {.fixed = Sane(cost.fixed()),
          .per_token = Sane(cost.per_token()),
          .per_context_token = Sane(cost.per_context_token()),
          .per_sequence = Sane(cost.per_sequence()),
          .per_prompt_context_token = Sane(cost.has_per_prompt_context_token()
                                               ? cost.per_prompt_context_token()
                                               : cost.per_context_token())};
}

std::vector<uint64_t> AdapterKeys(const v1::WorkerHello& hello) {
  std::vector<uint64_t> keys;
  for (const v1::Adapter& adapter : hello.adapters()) {
    keys.push_back(scheduling::AdapterKey(adapter.identity()));
  }
  std::sort(keys.begin(), keys.end());
  return keys;
}

}  // namespace

WorkerSnapshot IdleSnapshot(scheduling::WorkerId id,
                            scheduling::WorkerRole role,
                            const v1::WorkerHello& h) {
  return {.id = id,
          .role = role,
          .block_size = Clamped(h.fingerprint().block_size()),
          .total_blocks = Clamped(h.total_blocks()),
          .max_sequences = Clamped(h.max_sequences()),
          .max_context = Clamped(h.max_context()),
          .output_reserve = Clamped(h.output_reserve()),
          .max_queued_tokens = static_cast<int64_t>(std::min<uint64_t>(
              h.max_queued_tokens(), std::numeric_limits<int64_t>::max())),
          .free_blocks = Clamped(h.total_blocks()),
          .token_budget = Clamped(h.token_budget()),
          .itl_target_seconds = Sane(h.itl_target_ms() / 1e3),
          .kv_bytes_per_token = static_cast<int64_t>(
              std::min<uint64_t>(h.kv_bytes_per_token(), uint64_t{1} << 40)),
          .num_layers = Clamped(h.fingerprint().num_layers()),
          .adapters = AdapterKeys(h)};
}

void TakeAdapters(const v1::WorkerHello& hello, WorkerSnapshot* snapshot) {
  snapshot->adapters = AdapterKeys(hello);
}

void TakeReport(const v1::LoadReport& load, WorkerSnapshot* snapshot) {
  snapshot->running = Clamped(load.running());
  snapshot->waiting = Clamped(load.waiting());
  snapshot->free_blocks = Clamped(load.free_blocks());
  snapshot->queued_tokens = Clamped(load.queued_tokens());
  snapshot->queued_prompts = Clamped(load.queued_prompts());
  snapshot->context_tokens = Clamped(load.context_tokens());
  snapshot->step_cost = CostOf(load.step_cost());
  snapshot->placed_sequences = 0;
  snapshot->placed_blocks = 0;
  snapshot->placed_prompts = 0;
  snapshot->placed_tokens = 0;
}

}  // namespace baton::router
