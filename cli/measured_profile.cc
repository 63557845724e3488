#include "cli/measured_profile.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/decode_simulation.h"

namespace baton::cli {
namespace {

// What a file may say; workers may say more.
int32_t Bounded(uint64_t value, int32_t most) {
  return static_cast<int32_t>(std::min(value, static_cast<uint64_t>(most)));
}

bool IsKnown(const v1::WorkerCosts& costs) {
  return costs.fixed_seconds() > 0 || costs.seconds_per_token() > 0;
}

// Of the workers of a role; how many know their costs.
int ReadWorkers(const v1::GetClusterResponse& cluster, const std::string& role,
                planner::WorkerProfile* profile) {
  int count = 0;
  scheduling::StepCostMean mean;
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (worker.role() != role || !IsKnown(worker.costs())) continue;
    const v1::WorkerCosts& costs = worker.costs();
    mean.Add({.fixed = costs.fixed_seconds(),
              .per_token = costs.seconds_per_token(),
              .per_context_token = costs.seconds_per_context_token(),
              .per_sequence = costs.seconds_per_sequence(),
              .per_prompt_context_token =
                  costs.has_seconds_per_prompt_context_token()
                      ? costs.seconds_per_prompt_context_token()
                      : costs.seconds_per_context_token()});
    // The smallest of them.
    const auto least = [count](uint64_t value, int32_t most, int32_t* field) {
      const int32_t bounded = std::max(1, Bounded(value, most));
      *field = count == 0 ? bounded : std::min(*field, bounded);
    };
    constexpr int32_t kMost = 1'000'000'000;
    least(costs.block_size(), 1 << 20, &profile->block_size);
    least(worker.total_blocks(), kMost, &profile->total_blocks);
    least(costs.max_sequences(), 1 << 20, &profile->max_sequences);
    least(costs.max_context(), kMost, &profile->max_context);
    least(costs.token_budget(), 1 << 20, &profile->token_budget);
    if (costs.max_queued_tokens() > 0) {
      profile->max_queued_tokens = Bounded(costs.max_queued_tokens(), kMost);
    }
    ++count;
  }
  if (count > 0) profile->cost = mean.Get();
  return count;
}

void ReadLinks(const v1::GetClusterResponse& cluster,
               planner::ClusterProfile* profile) {
  std::vector<std::pair<double, double>> links;
  for (const v1::LinkStatus& link : cluster.links()) {
    if (link.bandwidth_bytes() <= 0) continue;
    links.emplace_back(link.bandwidth_bytes(), link.latency_seconds());
  }
  if (links.empty()) return;
  std::sort(links.begin(), links.end());
  profile->link_bytes_per_second = links[links.size() / 2].first;
  profile->link_latency_seconds = links[links.size() / 2].second;
}

}  // namespace

absl::StatusOr<planner::ClusterProfile> MeasuredProfile(
    const v1::GetClusterResponse& cluster) {
  planner::ClusterProfile profile;
  const int decode = ReadWorkers(cluster, "decode", &profile.decode);
  if (decode == 0) {
    return absl::FailedPreconditionError(
        "no decode worker has measured its steps yet: put some load on the "
        "cluster first (baton bench serve)");
  }
  const int prefill = ReadWorkers(cluster, "prefill", &profile.prefill);
  if (prefill == 0) profile.prefill = profile.decode;
  ReadLinks(cluster, &profile);
  for (const v1::WorkerStatus& worker : cluster.workers()) {
    if (worker.role() != "decode") continue;
    profile.kv_bytes_per_token = Bounded(worker.costs().kv_bytes_per_token(),
                                         std::numeric_limits<int32_t>::max());
    profile.num_layers =
        std::max(1, Bounded(worker.costs().num_layers(), 100'000));
  }
  // More than can be simulated is never reached.
  const int32_t most =
      planner::DecodeSimulation::MostSequences(profile.decode.token_budget);
  profile.decode.max_sequences =
      std::min(profile.decode.max_sequences, std::max(1, most));
  profile.source = absl::StrCat(
      "measured by ", prefill, " prefill and ", decode, " decode workers of ",
      cluster.router_name().empty() ? "a cluster" : cluster.router_name());
  if (absl::Status valid = Validate(profile); !valid.ok()) {
    return absl::FailedPreconditionError(valid.message());
  }
  return profile;
}

}  // namespace baton::cli
