#include "cli/measured_profile.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "planner/decode_simulation.h"

namespace baton::cli {
namespace {

// What a file may say; workers may say more.
int32_t Bounded(uint64_t value, int32_t most) {
  return static_cast<int32_t>(std::min(value, static_cast<uint64_t>(most)));
}

scheduling::StepCost CostOf(const v1::WorkerCosts& costs) {
  return {
      .fixed = costs.fixed_seconds(),
      .per_token = costs.seconds_per_token(),
      .per_context_token = costs.seconds_per_context_token(),
      .per_sequence = costs.seconds_per_sequence(),
      .per_prompt_context_token = costs.has_seconds_per_prompt_context_token()
                                      ? costs.seconds_per_prompt_context_token()
                                      : costs.seconds_per_context_token()};
}

using Times = absl::Span<const v1::GetClusterResponse>;

// Of the workers of a role that know their costs, at all times.
std::vector<const v1::WorkerStatus*> WorkersThatKnow(Times times,
                                                     const std::string& role) {
  std::vector<const v1::WorkerStatus*> found;
  for (const v1::GetClusterResponse& cluster : times) {
    for (const v1::WorkerStatus& worker : cluster.workers()) {
      if (worker.role() != role || !CostOf(worker.costs()).known()) continue;
      found.push_back(&worker);
    }
  }
  return found;
}

void ReadWorkers(const std::vector<const v1::WorkerStatus*>& workers,
                 planner::WorkerProfile* profile) {
  bool first = true;
  scheduling::StepCostMean mean;
  for (const v1::WorkerStatus* worker : workers) {
    const v1::WorkerCosts& costs = worker->costs();
    mean.Add(CostOf(costs));
    // The smallest of them.
    const auto least = [first](uint64_t value, int32_t most, int32_t* field) {
      const int32_t bounded = std::max(1, Bounded(value, most));
      *field = first ? bounded : std::min(*field, bounded);
    };
    constexpr int32_t kMost = 1'000'000'000;
    least(costs.block_size(), 1 << 20, &profile->block_size);
    least(worker->total_blocks(), kMost, &profile->total_blocks);
    least(costs.max_sequences(), 1 << 20, &profile->max_sequences);
    least(costs.max_context(), kMost, &profile->max_context);
    least(costs.token_budget(), 1 << 20, &profile->token_budget);
    if (costs.max_queued_tokens() > 0) {
      profile->max_queued_tokens = Bounded(costs.max_queued_tokens(), kMost);
    }
    first = false;
  }
  profile->cost = mean.Get();
}

void ReadLinks(Times times, planner::ClusterProfile* profile) {
  std::vector<std::pair<double, double>> links;
  for (const v1::GetClusterResponse& cluster : times) {
    for (const v1::LinkStatus& link : cluster.links()) {
      if (link.bandwidth_bytes() <= 0) continue;
      links.emplace_back(link.bandwidth_bytes(), link.latency_seconds());
    }
  }
  if (links.empty()) return;
  std::sort(links.begin(), links.end());
  profile->link_bytes_per_second = links[links.size() / 2].first;
  profile->link_latency_seconds = links[links.size() / 2].second;
}

}  // namespace

absl::StatusOr<planner::ClusterProfile> MeasuredProfile(
    absl::Span<const v1::GetClusterResponse> times) {
  CHECK(!times.empty());
  planner::ClusterProfile profile;
  const auto decode = WorkersThatKnow(times, "decode");
  if (decode.empty()) {
    return absl::FailedPreconditionError(
        "no decode worker has measured its steps yet: put some load on the "
        "cluster first (baton bench serve)");
  }
  ReadWorkers(decode, &profile.decode);
  const auto prefill = WorkersThatKnow(times, "prefill");
  profile.prefill = profile.decode;
  if (!prefill.empty()) ReadWorkers(prefill, &profile.prefill);
  ReadLinks(times, &profile);
  const v1::WorkerCosts& costs = decode.back()->costs();
  profile.kv_bytes_per_token =
      Bounded(costs.kv_bytes_per_token(), std::numeric_limits<int32_t>::max());
  profile.num_layers = std::max(1, Bounded(costs.num_layers(), 100'000));
  // More than can be simulated is never reached.
  const int32_t most =
      planner::DecodeSimulation::MostSequences(profile.decode.token_budget);
  profile.decode.max_sequences =
      std::min(profile.decode.max_sequences, std::max(1, most));
  const v1::GetClusterResponse& last = times.back();
  const Times at_last = times.last(1);
  profile.source = absl::StrCat(
      "measured by ", WorkersThatKnow(at_last, "prefill").size(),
      " prefill and ", WorkersThatKnow(at_last, "decode").size(),
      " decode workers of ",
      last.router_name().empty() ? "a cluster" : last.router_name());
  if (absl::Status valid = Validate(profile); !valid.ok()) {
    return absl::FailedPreconditionError(valid.message());
  }
  return profile;
}

}  // namespace baton::cli
