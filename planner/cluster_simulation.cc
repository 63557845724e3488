#include "planner/cluster_simulation.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "planner/fleet_simulation.h"
#include "planner/prefix_chains.h"
#include "planner/request_outcomes.h"
#include "planner/role_simulation.h"
#include "planner/router_simulation.h"
#include "scheduling/placement_policies.h"
#include "scheduling/placement_room.h"
#include "scheduling/waiting_line.h"

namespace baton::planner {
namespace {

using scheduling::PlacementVerdict;
using scheduling::WaitingLine;
using scheduling::WorkerId;
using workload::PlannedRequest;

constexpr double kNever = std::numeric_limits<double>::infinity();
// When workers that refused are asked again; doubled each time.
constexpr double kMinRetrySeconds = 0.02;
constexpr double kMaxRetrySeconds = 2;
// How long the bound of the batch holds a request up, in seconds.
constexpr double kBatchPatience = 30;

// Prefill workers or decode workers; of dual workers, their sides.
int32_t SidesOf(const SimulationOptions& options, bool prefill) {
  if (options.dual_workers) return options.num_prefill + options.num_decode;
  return prefill ? options.num_prefill : options.num_decode;
}

class Simulation final : public FleetListener {
 public:
  Simulation(const SimulationOptions& options,
             absl::Span<const PlannedRequest> requests, absl::Duration window);

  SimulationResult Run();

  void OnFirstToken(uint32_t request, double now) override;
  void OnGap(uint32_t request, double seconds) override {
    outcomes_.Gap(request, seconds);
  }
  void OnFinished(uint32_t request, double now) override;

 private:
  // What the router remembers of a request that it sent.
  struct Charge {
    FleetSimulation::Attempt attempt;
    int32_t prefill_tokens = 0;
    uint64_t report = 0;
  };
  // Of a request that was refused.
  struct Refusals {
    std::vector<WorkerId> workers;
    double retry_at = 0;
    double delay = kMinRetrySeconds;
  };

  double ArrivalOf(size_t request) const {
    return request < requests_.size()
               ? absl::ToDoubleSeconds(requests_[request].at)
               : kNever;
  }
  double NextRetry() const {
    return retries_.empty() ? kNever : retries_.top().first;
  }
  // By the numbers that the router knows workers by.
  int32_t num_prefill() const { return SidesOf(options_, true); }
  size_t NumberOfDecode(const Charge& charge) const;
  size_t NumberOfComputing(const Charge& charge) const;
  int32_t ChargedBlocks(uint32_t request) const;

  void Step(double now);
  void ChangeRoles(double now);
  void Arrive(uint32_t request, double now);
  // It would hold up all others for ever.
  bool NoPrefillWorkerCouldHold(uint32_t request) const;
  void PlaceWaiting(double now);
  // False: nobody behind it can be placed either.
  bool TryPlace(uint32_t request, double now);
  void Start(uint32_t request, const PlacementVerdict& verdict, double now);
  void Refused(uint32_t request, size_t worker, double now);
  scheduling::PlacementRequest Ask(uint32_t request, double now);
  scheduling::WaitingRequest InLine(uint32_t request) const;

  const SimulationOptions& options_;
  const absl::Span<const PlannedRequest> requests_;
  const absl::Duration window_;
  const PrefixChains prefixes_;
  RequestOutcomes outcomes_;
  RouterSimulation router_;
  FleetSimulation fleet_;
  // Without dual workers, none.
  std::optional<RoleSimulation> roles_;
  WaitingLine line_;
  // Nothing has changed since nobody could be placed.
  bool blocked_ = false;
  // The same of those that are late, which others pass.
  bool late_blocked_ = false;
  size_t arrived_ = 0;
  std::vector<Charge> charges_;  // by request
  std::map<uint32_t, Refusals> refusals_;
  // When, and whom; the first one on top.
  std::priority_queue<std::pair<double, uint32_t>,
                      std::vector<std::pair<double, uint32_t>>, std::greater<>>
      retries_;
  double last_event_ = 0;  // of a worker
  int64_t refused_ = 0;
};

Simulation::Simulation(const SimulationOptions& options,
                       absl::Span<const PlannedRequest> requests,
                       absl::Duration window)
    : options_(options),
      requests_(requests),
      window_(window),
      prefixes_(options.prefix_cache_tokens > 0 && !options.dual_workers
                    ? PrefixChains(requests)
                    : PrefixChains()),
      outcomes_(requests, options.targets, options.timeout_seconds),
      router_({.num_prefill = SidesOf(options, true),
               .num_decode = SidesOf(options, false),
               .placement = options.placement,
               .allow_local_prefill = options.allow_local_prefill,
               .dual_workers = options.dual_workers,
               .first_prefill_roles = options.num_prefill},
              options.profile, prefixes_),
      fleet_(
          {.profile = options.profile,
           .num_prefill = SidesOf(options, true),
           .num_decode = SidesOf(options, false),
           .ttft_target_seconds = absl::ToDoubleSeconds(options.targets.ttft),
           .itl_target_seconds = absl::ToDoubleSeconds(options.targets.itl),
           .fast_forward = options.fast_forward,
           .split_share = options.split_share,
           .prefix_cache_tokens = options.prefix_cache_tokens,
           .dual_workers = options.dual_workers,
           .first_prefill_roles = options.num_prefill},
          requests, prefixes_, this),
      line_(WaitingLine::Options()),
      charges_(requests.size()) {
  if (options.dual_workers) {
    roles_.emplace(options.profile, options.num_prefill + options.num_decode,
                   options.num_prefill, options.allow_local_prefill, requests,
                   absl::ToDoubleSeconds(options.targets.itl));
  }
}

SimulationResult Simulation::Run() {
  const double end = absl::ToDoubleSeconds(window_) + options_.timeout_seconds;
  while (outcomes_.misses() <= options_.most_misses) {
    const double now = std::min({ArrivalOf(arrived_), fleet_.next_event(),
                                 NextRetry(), fleet_.next_report()});
    if (now == kNever || now > end) break;
    if (roles_.has_value() && roles_->next() <= now) {
      ChangeRoles(roles_->next());
      continue;
    }
    if (fleet_.next_event() <= now) last_event_ = now;
    Step(now);
    if (!blocked_ && !line_.empty()) PlaceWaiting(now);
  }
  SimulationResult result = outcomes_.Sum(window_);
  result.total_seconds = std::max(result.window_seconds, last_event_);
  fleet_.Sum(&result);
  result.refused_attempts = refused_;
  result.placements = router_.num_placements();
  if (roles_.has_value()) result.role_changes = roles_->num_changes();
  result.stopped_early = outcomes_.misses() > options_.most_misses;
  return result;
}

// One event; those of a time in an order that is always the same.
void Simulation::Step(double now) {
  if (ArrivalOf(arrived_) <= now) {
    Arrive(static_cast<uint32_t>(arrived_++), now);
  } else if (fleet_.next_event() <= now) {
    fleet_.Advance();
  } else if (NextRetry() <= now) {
    const auto refusals = refusals_.find(retries_.top().second);
    if (refusals != refusals_.end()) refusals->second.workers.clear();
    retries_.pop();
    blocked_ = late_blocked_ = false;
  } else {
    fleet_.Report(now, [&](size_t worker, const SimulatedReport& report) {
      router_.Reported(worker, report, now);
    });
    blocked_ = late_blocked_ = false;
  }
}

void Simulation::ChangeRoles(double now) {
  for (const scheduling::RoleChange& change :
       roles_->Decide(router_, fleet_, now)) {
    fleet_.SetRole(change.worker, change.role, now);
  }
}

scheduling::WaitingRequest Simulation::InLine(uint32_t request) const {
  const PlannedRequest& planned = requests_[request];
  scheduling::WaitingRequest waiting;
  waiting.key = request;
  waiting.tokens = int64_t{planned.prompt_tokens} + planned.output_tokens;
  if (options_.targets.ttft > absl::ZeroDuration()) {
    waiting.start_by = scheduling::StartBy(
        absl::UnixEpoch() + planned.at, options_.targets.ttft,
        router_.LeastPrefillSeconds(planned.prompt_tokens));
  }
  return waiting;
}

bool Simulation::NoPrefillWorkerCouldHold(uint32_t request) const {
  if (options_.allow_local_prefill) return false;
  const WorkerProfile& prefill = options_.profile.prefill;
  const int32_t tokens = requests_[request].prompt_tokens;
  return tokens > prefill.max_context ||
         scheduling::BlocksFor(tokens, prefill.block_size) >
             prefill.total_blocks;
}

void Simulation::Arrive(uint32_t request, double now) {
  using Verdict = WaitingLine::Admission::Verdict;
  if (NoPrefillWorkerCouldHold(request)) {
    outcomes_.Rejected(request);
    return;
  }
  const scheduling::WaitingRequest waiting = InLine(request);
  const absl::Time time = VirtualTime(now);
  if (!blocked_ && line_.IsTightFor(waiting, time)) PlaceWaiting(now);
  const WaitingLine::Admission admission = line_.Admit(waiting, time);
  if (admission.verdict != Verdict::kJoined) outcomes_.Rejected(request);
  if (admission.evicted.has_value()) {
    outcomes_.Rejected(static_cast<uint32_t>(*admission.evicted));
  }
}

void Simulation::PlaceWaiting(double now) {
  const absl::Time time = VirtualTime(now);
  if (late_blocked_) line_.SetLateAside();
  while (const std::optional<uint64_t> key = line_.Next(time)) {
    if (TryPlace(static_cast<uint32_t>(*key), now)) continue;
    blocked_ = true;
    break;
  }
  line_.EndTurn(time);
}

scheduling::PlacementRequest Simulation::Ask(uint32_t request, double now) {
  const PlannedRequest& planned = requests_[request];
  scheduling::PlacementRequest ask;
  ask.prefill_tokens = planned.prompt_tokens;
  ask.cached = router_.Look(request, planned.prompt_tokens - 1, now);
  ask.total_tokens = planned.prompt_tokens + planned.output_tokens;
  // The targets as the router has them for its own (router/request_urgency.cc).
  if (options_.targets.ttft > absl::ZeroDuration() && !line_.IsLate(request)) {
    ask.ttft_target_seconds = std::max(
        0.0, absl::ToDoubleSeconds(planned.at + options_.targets.ttft) - now);
  }
  ask.stands_by = line_.StandsBy(request);
  ask.little_seconds =
      scheduling::LittleSeconds(absl::ToDoubleSeconds(options_.targets.ttft));
  ask.itl_target_seconds = absl::ToDoubleSeconds(options_.targets.itl);
  if (ask.stands_by || now - ArrivalOf(request) <= kBatchPatience) {
    ask.batch_itl_seconds = ask.itl_target_seconds;
  }
  const auto refusals = refusals_.find(request);
  if (refusals != refusals_.end()) {
    ask.excluded = refusals->second.workers;
    ask.allow_excluded_decode = now >= refusals->second.retry_at;
  }
  return ask;
}

bool Simulation::TryPlace(uint32_t request, double now) {
  if (now - ArrivalOf(request) > options_.timeout_seconds) {
    line_.Remove(request);
    outcomes_.Expired(request);
    return true;
  }
  const scheduling::PlacementRequest ask = Ask(request, now);
  const PlacementVerdict verdict = router_.Place(ask, now);
  if (verdict.kind != PlacementVerdict::Kind::kNone) {
    // Others still can be in time.
    if (scheduling::MissesTtftTarget(ask, verdict) &&
        line_.StandBack(request)) {
      return true;
    }
    Start(request, verdict, now);
    return true;
  }
  if (verdict.reason == scheduling::PlacementReason::kTooLarge) {
    line_.Remove(request);
    outcomes_.Rejected(request);
    return true;
  }
  if (verdict.reason != scheduling::PlacementReason::kOnlyExcluded) {
    if (!ask.stands_by) return false;
    late_blocked_ = true;
    line_.SetLateAside();
    return true;
  }
  // Its own bad luck is no reason for others to wait.
  line_.SetAside(request);
  return true;
}

size_t Simulation::NumberOfDecode(const Charge& charge) const {
  return static_cast<size_t>(num_prefill() + charge.attempt.decode);
}

size_t Simulation::NumberOfComputing(const Charge& charge) const {
  return charge.attempt.prefill >= 0
             ? static_cast<size_t>(charge.attempt.prefill)
             : NumberOfDecode(charge);
}

int32_t Simulation::ChargedBlocks(uint32_t request) const {
  const PlannedRequest& planned = requests_[request];
  return scheduling::BlocksFor(planned.prompt_tokens + planned.output_tokens,
                               options_.profile.decode.block_size);
}

void Simulation::Start(uint32_t request, const PlacementVerdict& verdict,
                       double now) {
  line_.Place(request, VirtualTime(now));
  Charge& charge = charges_[request];
  charge.attempt.decode =
      static_cast<int32_t>(RouterSimulation::NumberOf(verdict.decode)) -
      num_prefill();
  charge.attempt.prefill =
      verdict.prefill == scheduling::kNoWorker
          ? -1
          : static_cast<int32_t>(RouterSimulation::NumberOf(verdict.prefill));
  router_.PlacedDecode(NumberOfDecode(charge), ChargedBlocks(request));
  // As its reports count them: a prefill worker finds what is cached when the
  // prompt's turn comes.
  charge.prefill_tokens =
      requests_[request].prompt_tokens -
      (charge.attempt.prefill < 0 ? verdict.cached_tokens : 0);
  charge.report =
      router_.PlacedPrefill(NumberOfComputing(charge), charge.prefill_tokens);
  const std::optional<size_t> refuses =
      fleet_.Refuses(request, charge.attempt, now);
  if (refuses.has_value()) {
    Refused(request, *refuses, now);
  } else {
    refusals_.erase(request);
    fleet_.Assign(request, charge.attempt, now);
    if (roles_.has_value()) roles_->Began(request, now);
  }
}

void Simulation::Refused(uint32_t request, size_t worker, double now) {
  ++refused_;
  const Charge& charge = charges_[request];
  router_.EndedDecode(NumberOfDecode(charge), ChargedBlocks(request));
  router_.EndedPrefill(NumberOfComputing(charge), charge.prefill_tokens,
                       charge.report);
  Refusals& refusals = refusals_[request];
  refusals.workers.push_back(RouterSimulation::IdOf(worker));
  if (refusals.retry_at <= now) {
    refusals.retry_at = now + refusals.delay;
    refusals.delay = std::min(2 * refusals.delay, kMaxRetrySeconds);
    retries_.push({refusals.retry_at, request});
  }
  line_.Resume(InLine(request), VirtualTime(now));
}

void Simulation::OnFirstToken(uint32_t request, double now) {
  outcomes_.FirstToken(request, now);
  const Charge& charge = charges_[request];
  router_.EndedPrefill(NumberOfComputing(charge), charge.prefill_tokens,
                       charge.report);
  blocked_ = late_blocked_ = false;
}

void Simulation::OnFinished(uint32_t request, double now) {
  outcomes_.Finished(request, now);
  router_.EndedDecode(NumberOfDecode(charges_[request]),
                      ChargedBlocks(request));
  if (roles_.has_value()) roles_->Ended(request, now);
  blocked_ = late_blocked_ = false;
}

}  // namespace

absl::Status Validate(const SimulationOptions& options) {
  BATON_RETURN_IF_ERROR(Validate(options.profile));
  BATON_RETURN_IF_ERROR(
      scheduling::MakePlacementPolicy(options.placement).status());
  if (options.num_prefill < 0 || options.num_decode < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.num_prefill, " prefill and ", options.num_decode,
                     " decode workers: at least one decode worker is needed"));
  }
  if (options.dual_workers &&
      (options.split_share > 0 || options.profile.prefill.block_size !=
                                      options.profile.decode.block_size)) {
    return absl::InvalidArgumentError(
        "dual_workers: with KV blocks of one size, and without split_share");
  }
  if (options.num_prefill == 0 && !options.allow_local_prefill) {
    return absl::InvalidArgumentError(
        "without prefill workers, decode workers must compute prompts");
  }
  if (options.prefix_cache_tokens < 0) {
    return absl::InvalidArgumentError("prefix_cache_tokens is below 0");
  }
  if (!(options.split_share >= 0 && options.split_share < 1)) {
    return absl::InvalidArgumentError("split_share must be in [0, 1)");
  }
  if (options.split_share > 0 && options.prefix_cache_tokens > 0) {
    return absl::InvalidArgumentError(
        "split_share is for clusters without prefix caches");
  }
  if (!(options.timeout_seconds > 0)) {
    return absl::InvalidArgumentError("timeout_seconds must be above 0");
  }
  return absl::OkStatus();
}

SimulationResult Simulate(const SimulationOptions& options,
                          absl::Span<const PlannedRequest> requests,
                          absl::Duration window) {
  const absl::Status valid = Validate(options);
  CHECK(valid.ok()) << valid;
  CHECK_LE(requests.size(), std::numeric_limits<uint32_t>::max());
  return Simulation(options, requests, window).Run();
}

}  // namespace baton::planner
