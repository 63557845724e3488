// Clusters for tests and benchmarks of placement: made by hand, or drawn at
// random from a seed. Header only; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "scheduling/placement.h"

namespace baton::scheduling::test {

// A millisecond per prompt token, 0.1 microseconds for each position read.
inline constexpr StepCost kCost = {.fixed = 0.002,
                                   .per_token = 0.001,
                                   .per_context_token = 1e-7,
                                   .per_sequence = 0.0001,
                                   .per_prompt_context_token = 1e-7};

inline WorkerSnapshot DecodeWorker(WorkerId id, int32_t running = 0) {
  return {.id = id,
          .role = WorkerRole::kDecode,
          .usable = true,
          .block_size = 16,
          .total_blocks = 1000,
          .max_sequences = 64,
          .max_context = 8192,
          .running = running,
          .free_blocks = 1000,
          .context_tokens = 500 * running,
          .step_cost = kCost,
          .token_budget = 256,
          .kv_bytes_per_token = 1 << 16,
          .num_layers = 16};
}

inline WorkerSnapshot PrefillWorker(WorkerId id,
                                    std::vector<WorkerId> paired_with,
                                    double bandwidth = 1e9) {
  WorkerSnapshot worker = {.id = id,
                           .role = WorkerRole::kPrefill,
                           .usable = true,
                           .block_size = 16,
                           .total_blocks = 1000,
                           .max_sequences = 64,
                           .max_context = 8192,
                           .free_blocks = 1000,
                           .step_cost = kCost,
                           .token_budget = 512,
                           .paired_with = std::move(paired_with)};
  worker.link_bandwidth.assign(worker.paired_with.size(), bandwidth);
  return worker;
}

inline PlacementRequest RequestOf(int32_t prompt, int32_t output) {
  return {.prefill_tokens = prompt, .total_tokens = prompt + output};
}

// Numbers that are the same on every machine.
class Dice final {
 public:
  explicit Dice(uint32_t seed) : random_(seed) {}

  // In [0, most).
  int Below(int most) {
    return static_cast<int>(random_() % static_cast<unsigned>(most));
  }
  bool OneIn(int n) { return Below(n) == 0; }

 private:
  std::mt19937 random_;
};

struct RandomOptions {
  int num_prefill = 3;
  int num_decode = 4;
  // Of so many, one pair is missing, one worker is unusable or full; 0: none.
  int unpaired_one_in = 0;
  // Only one pair of so many is there.
  int paired_one_in = 1;
  int unfit_one_in = 0;
  // Of so many workers, one has part of the prompt; 0: none.
  int cached_one_in = 0;
};

// Loads, costs and links at random. Ids count up in the order of the workers.
inline ClusterSnapshot RandomCluster(const RandomOptions& options, Dice* dice) {
  ClusterSnapshot cluster;
  const auto id = [](int i) { return WorkerId{static_cast<uint64_t>(1 + i)}; };
  const auto cost = [&] {
    StepCost slower = kCost;
    const double factor = 0.5 + 0.1 * dice->Below(20);
    slower.fixed *= factor;
    slower.per_token *= factor;
    slower.per_context_token *= factor;
    slower.per_sequence *= factor;
    slower.per_prompt_context_token *= factor;
    return slower;
  };
  const auto unfit = [&] {
    return options.unfit_one_in > 0 && dice->OneIn(options.unfit_one_in);
  };
  for (int p = 0; p < options.num_prefill; ++p) {
    WorkerSnapshot worker = PrefillWorker(id(p), {});
    for (int d = 0; d < options.num_decode; ++d) {
      if (options.unpaired_one_in > 0 && dice->OneIn(options.unpaired_one_in)) {
        continue;
      }
      if (!dice->OneIn(options.paired_one_in)) continue;
      worker.paired_with.push_back(id(options.num_prefill + d));
      worker.link_bandwidth.push_back(
          dice->OneIn(8) ? 0 : 1e7 * (1 + dice->Below(1000)));
    }
    worker.step_cost = cost();
    worker.queued_tokens = dice->Below(4000);
    worker.waiting = 1 + dice->Below(8);
    worker.placed_tokens = dice->Below(500);
    worker.placed_prompts = worker.placed_tokens > 0 ? 1 : 0;
    if (unfit()) worker.usable = false;
    if (unfit()) worker.max_queued_tokens = 100;
    if (unfit()) worker.total_blocks = 4;
    cluster.workers.push_back(std::move(worker));
  }
  for (int d = 0; d < options.num_decode; ++d) {
    WorkerSnapshot worker =
        DecodeWorker(id(options.num_prefill + d), dice->Below(40));
    worker.free_blocks = 300 + dice->Below(700);
    worker.step_cost = cost();
    worker.queued_tokens = dice->OneIn(3) ? dice->Below(1500) : 0;
    worker.waiting = dice->Below(3);
    worker.placed_sequences = dice->Below(3);
    worker.placed_blocks = 10 * worker.placed_sequences;
    if (unfit()) worker.usable = false;
    if (unfit()) worker.free_blocks = 1;
    if (unfit()) worker.running = worker.max_sequences;
    if (unfit()) worker.max_context = 64;
    cluster.workers.push_back(std::move(worker));
  }
  cluster.round = static_cast<uint64_t>(dice->Below(1000));
  return cluster;
}

// With or without targets.
inline PlacementRequest RandomRequest(Dice* dice) {
  PlacementRequest request =
      RequestOf(1 + dice->Below(2000), 1 + dice->Below(300));
  if (dice->OneIn(2)) request.ttft_target_seconds = 0.1 * (1 + dice->Below(20));
  if (dice->OneIn(2)) {
    request.itl_target_seconds = 0.005 * (1 + dice->Below(10));
  }
  return request;
}

// What some of the workers have of the prompt, by id.
inline std::vector<CachedPrompt> RandomCached(const RandomOptions& options,
                                              const ClusterSnapshot& cluster,
                                              const PlacementRequest& request,
                                              Dice* dice) {
  std::vector<CachedPrompt> cached;
  if (options.cached_one_in == 0 || request.prefill_tokens < 2) return cached;
  for (const WorkerSnapshot& worker : cluster.workers) {
    if (!dice->OneIn(options.cached_one_in)) continue;
    cached.push_back({worker.id, 1 + dice->Below(request.prefill_tokens - 1)});
  }
  return cached;
}

}  // namespace baton::scheduling::test
