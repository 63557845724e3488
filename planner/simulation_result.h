// What came of a simulated load, in the words of docs/load_generator.md.
//
// Pure; any thread.
#pragma once

#include <cstdint>

#include "common/json.h"
#include "workload/goodput.h"

namespace baton::planner {

// Of all workers of a kind together.
struct PoolUsage {
  int32_t workers = 0;
  // Share of the time in which they computed.
  double busy = 0;
  // Sequences in a step, on average over the time in which they computed.
  double batch = 0;
  // Decode workers: share of the KV blocks that was set aside, over time.
  double kv_blocks = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
};

struct SimulationResult {
  int64_t offered = 0;
  int64_t finished = 0;
  int64_t rejected = 0;
  // Too late, or not at all.
  int64_t unfinished = 0;
  // Those that finished within the targets; of all that were offered.
  int64_t met = 0;
  // Those that finished with a late first token, or too slowly after it, or
  // both.
  int64_t missed_ttft = 0;
  int64_t missed_tpot = 0;
  double attainment = 0;
  double goodput = 0;  // per second of the window
  // Over which requests came, and until the workers had nothing to do.
  double window_seconds = 0;
  double total_seconds = 0;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;

  // In milliseconds. Of all with output; of those that finished; between
  // tokens, within 1 %; the longest of each that finished.
  workload::Percentiles ttft, tpot, e2e, itl, longest_gap;

  // Prompt tokens that were found in a prefix cache by the worker that was to
  // compute them; that were not sent, since the decode worker had them.
  int64_t cached_tokens = 0;
  int64_t unsent_tokens = 0;
  // Prompts that were computed on the decode worker.
  int64_t local_prefills = 0;
  // Attempts that a worker refused, and verdicts of the policy.
  int64_t refused_attempts = 0;
  int64_t placements = 0;
  // Of dual workers, the workers of a kind are sides: as many of each as there
  // are workers.
  PoolUsage prefill, decode;
  int64_t role_changes = 0;
  // Given up: more missed their targets than may.
  bool stopped_early = false;
};

// Of all prompt tokens, the share that was found in a prefix cache.
double PrefixHitRate(const SimulationResult& result);

nlohmann::ordered_json SimulationJson(const SimulationResult& result);

}  // namespace baton::planner
