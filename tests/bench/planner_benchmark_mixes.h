// The loads and the clusters that planner_benchmark simulates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "planner/cluster_simulation.h"
#include "planner/plan_search.h"
#include "planner/profile.h"
#include "workload/workload.h"

namespace baton::bench {

struct Lengths {
  workload::LengthRange prompt;
  workload::LengthRange output;
};

struct Mix {
  const char* name;
  Lengths lengths;
  absl::Duration ttft;
  absl::Duration itl;
  // Requests per second and worker, where the search begins.
  double first_rate;
  // Of a mix that changes: what comes instead every second phase, as often.
  std::optional<Lengths> in_turn = std::nullopt;
};

absl::Span<const Mix> AllMixes();

// The mix that is called so, or null.
const Mix* FindMix(const std::string& name);

// About Llama 3.3 70B with weights of a byte on one H200.
planner::ClusterProfile Profile();

// `rate` requests per second for so many seconds, or as many phases of both
// kinds as that needs if the mix changes.
planner::Load MakeLoad(const Mix& mix, double rate, double seconds);

planner::SimulationOptions Cluster(const Mix& mix, int32_t prefill,
                                   int32_t decode);

}  // namespace baton::bench
