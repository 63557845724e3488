#include "planner/simulation_result.h"

namespace baton::planner {
namespace {

using nlohmann::ordered_json;
using workload::PercentilesJson;

ordered_json PoolJson(const PoolUsage& pool) {
  return {{"workers", pool.workers},
          {"busy", pool.busy},
          {"mean_sequences_in_step", pool.batch},
          {"kv_blocks_in_use", pool.kv_blocks},
          {"steps", pool.steps},
          {"prompt_tokens", pool.prompt_tokens}};
}

}  // namespace

double PrefixHitRate(const SimulationResult& result) {
  const auto cached = static_cast<double>(result.cached_tokens);
  const auto computed = static_cast<double>(result.prefill.prompt_tokens +
                                            result.decode.prompt_tokens);
  return cached > 0 ? cached / (cached + computed) : 0;
}

ordered_json SimulationJson(const SimulationResult& result) {
  return {{"offered", result.offered},
          {"finished", result.finished},
          {"rejected", result.rejected},
          {"unfinished", result.unfinished},
          {"window_seconds", result.window_seconds},
          {"total_seconds", result.total_seconds},
          {"attainment", result.attainment},
          {"missed_ttft", result.missed_ttft},
          {"missed_tpot", result.missed_tpot},
          {"goodput_per_second", result.goodput},
          {"prompt_tokens", result.prompt_tokens},
          {"output_tokens", result.output_tokens},
          {"cached_prompt_tokens", result.cached_tokens},
          {"unsent_prompt_tokens", result.unsent_tokens},
          {"prefix_hit_rate", PrefixHitRate(result)},
          {"local_prefills", result.local_prefills},
          {"refused_attempts", result.refused_attempts},
          {"stopped_early", result.stopped_early},
          {"ttft_ms", PercentilesJson(result.ttft)},
          {"tpot_ms", PercentilesJson(result.tpot)},
          {"itl_ms", PercentilesJson(result.itl)},
          {"longest_gap_ms", PercentilesJson(result.longest_gap)},
          {"e2e_ms", PercentilesJson(result.e2e)},
          {"prefill_workers", PoolJson(result.prefill)},
          {"decode_workers", PoolJson(result.decode)}};
}

}  // namespace baton::planner
