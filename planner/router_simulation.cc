#include "planner/router_simulation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/time/time.h"
#include "common/log.h"
#include "scheduling/placement_policies.h"

namespace baton::planner {
namespace {

using scheduling::PlacementPolicy;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

// Of the router's prefix index.
constexpr int64_t kIndexBytes = int64_t{1} << 40;
// As router/prefix_hints.cc.
constexpr double kLookEverySeconds = 0.05;

std::unique_ptr<const PlacementPolicy> MakePolicy(const std::string& name) {
  auto policy = scheduling::MakePlacementPolicy(name);
  CHECK(policy.ok()) << policy.status();
  return *std::move(policy);
}

WorkerSnapshot IdleWorker(size_t number, WorkerRole role,
                          const ClusterProfile& cluster) {
  const WorkerProfile& worker =
      role == WorkerRole::kPrefill ? cluster.prefill : cluster.decode;
  WorkerSnapshot snapshot;
  snapshot.id = RouterSimulation::IdOf(number);
  snapshot.role = role;
  snapshot.usable = true;
  snapshot.block_size = worker.block_size;
  snapshot.total_blocks = worker.total_blocks;
  snapshot.max_sequences = worker.max_sequences;
  snapshot.max_context = worker.max_context;
  if (role == WorkerRole::kPrefill) {
    snapshot.max_queued_tokens = worker.max_queued_tokens;
  }
  snapshot.free_blocks = worker.total_blocks;
  snapshot.step_cost = worker.cost;
  snapshot.reported_at = VirtualTime(0);
  snapshot.token_budget = worker.token_budget;
  snapshot.kv_bytes_per_token = cluster.kv_bytes_per_token;
  snapshot.num_layers = cluster.num_layers;
  return snapshot;
}

}  // namespace

RouterSimulation::RouterSimulation(const RouterSimulationOptions& options,
                                   const ClusterProfile& profile,
                                   const PrefixChains& prefixes)
    : policy_(MakePolicy(options.placement)), prefixes_(prefixes) {
  if (!prefixes.empty()) {
    // Nothing is dropped: which names would be is another thing in each run.
    index_ = std::make_unique<scheduling::PrefixIndex>(
        scheduling::PrefixIndex::Options{.max_bytes = kIndexBytes});
  }
  CHECK_GE(options.num_prefill, 0);
  CHECK_GE(options.num_decode, 1);
  const auto num_prefill = static_cast<size_t>(options.num_prefill);
  const size_t count = num_prefill + static_cast<size_t>(options.num_decode);
  cluster_.allow_local_prefill = options.allow_local_prefill;
  cluster_.now = VirtualTime(0);
  reports_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    cluster_.workers.push_back(IdleWorker(
        i, i < num_prefill ? WorkerRole::kPrefill : WorkerRole::kDecode,
        profile));
  }
  for (size_t i = 0; i < num_prefill; ++i) {
    WorkerSnapshot& worker = cluster_.workers[i];
    for (size_t decode = num_prefill; decode < count; ++decode) {
      if (options.dual_workers && decode == i + num_prefill) continue;
      worker.paired_with.push_back(IdOf(decode));
    }
    worker.link_bandwidth.assign(worker.paired_with.size(),
                                 profile.link_bytes_per_second);
    if (!options.dual_workers) continue;
    const bool prefills = i < static_cast<size_t>(options.first_prefill_roles);
    worker.usable = prefills;
    cluster_.workers[i + num_prefill].usable = !prefills;
  }
}

scheduling::PlacementVerdict RouterSimulation::Place(
    const scheduling::PlacementRequest& request, double now) {
  ++num_placements_;
  cluster_.now = VirtualTime(now);
  const scheduling::PlacementVerdict verdict =
      policy_->Place(cluster_, request);
  if (verdict.kind != scheduling::PlacementVerdict::Kind::kNone) {
    ++cluster_.round;
  }
  return verdict;
}

absl::Span<const scheduling::CachedPrompt> RouterSimulation::Look(
    uint32_t request, int32_t most, double now) {
  const absl::Span<const uint32_t> chain = prefixes_.Of(request);
  if (chain.empty() || most <= 0) return {};
  if (looked_at_ >= 0 && looked_for_ == request &&
      now - looked_at_ < kLookEverySeconds) {
    return cached_;
  }
  looked_for_ = request;
  looked_at_ = now;
  names_.clear();
  for (const uint32_t entry : chain) names_.push_back({.low = entry});
  index_->Match(names_, &matches_);
  cached_.clear();
  for (const scheduling::PrefixMatch& match : matches_) {
    // Whole blocks, as the worker has them.
    const int64_t size = worker(NumberOf(match.worker)).block_size;
    const int64_t tokens =
        int64_t{match.blocks} * prefixes_.entry_tokens() / size * size;
    cached_.push_back(
        {match.worker, static_cast<int32_t>(std::min<int64_t>(tokens, most))});
  }
  return cached_;
}

void RouterSimulation::Reported(size_t worker, const SimulatedReport& report,
                                double now) {
  WorkerSnapshot& snapshot = cluster_.workers[worker];
  snapshot.usable = report.usable;
  snapshot.running = report.running;
  snapshot.waiting = report.waiting;
  snapshot.free_blocks = report.free_blocks;
  snapshot.queued_tokens = report.queued_tokens;
  snapshot.queued_prompts = report.queued_prompts;
  snapshot.context_tokens = report.context_tokens;
  snapshot.reported_at = VirtualTime(now);
  snapshot.placed_sequences = 0;
  snapshot.placed_blocks = 0;
  snapshot.placed_prompts = 0;
  snapshot.placed_tokens = 0;
  ++reports_[worker];
  if (index_ == nullptr) return;
  index_->Remove(snapshot.id, report.prefixes.removed);
  index_->Store(snapshot.id, report.prefixes.stored);
}

void RouterSimulation::PlacedDecode(size_t worker, int32_t blocks) {
  ++cluster_.workers[worker].placed_sequences;
  cluster_.workers[worker].placed_blocks += blocks;
}

void RouterSimulation::EndedDecode(size_t worker, int32_t blocks) {
  --cluster_.workers[worker].placed_sequences;
  cluster_.workers[worker].placed_blocks -= blocks;
}

uint64_t RouterSimulation::PlacedPrefill(size_t worker, int32_t tokens) {
  ++cluster_.workers[worker].placed_prompts;
  cluster_.workers[worker].placed_tokens += tokens;
  return reports_[worker];
}

void RouterSimulation::EndedPrefill(size_t worker, int32_t tokens,
                                    uint64_t report) {
  if (reports_[worker] != report) return;
  --cluster_.workers[worker].placed_prompts;
  cluster_.workers[worker].placed_tokens -= tokens;
}

double RouterSimulation::LeastPrefillSeconds(int32_t tokens) const {
  double least = std::numeric_limits<double>::infinity();
  // All prefill workers are alike, and all decode workers.
  for (const WorkerSnapshot* worker :
       {&cluster_.workers.front(), &cluster_.workers.back()}) {
    if (worker->role == WorkerRole::kDecode && !cluster_.allow_local_prefill) {
      continue;
    }
    least = std::min(least, worker->step_cost.PrefillSeconds(
                                0, tokens, worker->token_budget));
  }
  return least;
}

}  // namespace baton::planner
