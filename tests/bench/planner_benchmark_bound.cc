#include "tests/bench/planner_benchmark_bound.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "absl/time/time.h"

namespace baton::bench {
namespace {

using workload::PlannedRequest;

constexpr double kAttainment = 0.9;

// Tokens that come from decode steps.
double Later(const PlannedRequest& request) {
  return std::max(0, request.output_tokens - 1);
}

// What a decode step takes for a token of it, which reads half of the answer on
// average.
double TokenSeconds(const PlannedRequest& request,
                    const scheduling::StepCost& cost) {
  return cost.per_token + cost.per_sequence +
         cost.per_context_token *
             (request.prompt_tokens + 0.5 * request.output_tokens);
}

double PromptSeconds(const PlannedRequest& request,
                     const scheduling::StepCost& cost) {
  const double tokens = request.prompt_tokens;
  return cost.per_token * tokens +
         cost.per_prompt_context_token * tokens * tokens / 2;
}

// Most streams of a step, on average over their tokens.
double MostStreams(absl::Span<const PlannedRequest> requests,
                   const planner::WorkerProfile& worker,
                   const workload::Targets& targets) {
  double tokens = 0;
  double seconds = 0;
  double held = 0;
  for (const PlannedRequest& request : requests) {
    tokens += Later(request);
    seconds += Later(request) * TokenSeconds(request, worker.cost);
    held += Later(request) * (request.prompt_tokens + request.output_tokens);
  }
  const double in_time =
      (absl::ToDoubleSeconds(targets.itl) - worker.cost.fixed) /
      (seconds / tokens);
  const double in_memory = static_cast<double>(worker.total_blocks) *
                           worker.block_size / (held / tokens);
  return std::clamp(std::min(in_time, in_memory), 1.0,
                    static_cast<double>(worker.max_sequences));
}

}  // namespace

CapacityBound BoundOf(absl::Span<const PlannedRequest> requests,
                      const planner::ClusterProfile& profile,
                      const workload::Targets& targets) {
  const scheduling::StepCost& cost = profile.decode.cost;
  const double fixed =
      cost.fixed / MostStreams(requests, profile.decode, targets);
  std::vector<double> seconds;
  for (const PlannedRequest& request : requests) {
    seconds.push_back(PromptSeconds(request, cost) +
                      Later(request) * (TokenSeconds(request, cost) + fixed));
  }
  std::sort(seconds.begin(), seconds.end());
  const auto mean_of = [&](size_t count) {
    return std::accumulate(seconds.begin(),
                           seconds.begin() + static_cast<ptrdiff_t>(count),
                           0.0) /
           static_cast<double>(count);
  };
  const auto kept =
      static_cast<size_t>(kAttainment * static_cast<double>(seconds.size()));
  return {.fair = 1 / (kAttainment * mean_of(seconds.size())),
          .any = 1 / (kAttainment * mean_of(std::max<size_t>(1, kept)))};
}

}  // namespace baton::bench
