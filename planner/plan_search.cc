#include "planner/plan_search.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "common/log.h"
#include "common/status_macros.h"

namespace baton::planner {
namespace {

// Up to so many workers, all splits are tried; of more, so many at first.
constexpr int32_t kAllSplits = 8;
constexpr int32_t kCoarse = 8;
// Attainments that differ by less are as good.
constexpr double kSame = 0.005;
// Of many workers, the least number is found to this part of it.
constexpr int32_t kPrecision = 64;

// Of a latency, the share of its target that it takes; 0 without one.
double ShareOf(double milliseconds, absl::Duration target) {
  if (target <= absl::ZeroDuration() || std::isnan(milliseconds)) return 0;
  return milliseconds / absl::ToDoubleMilliseconds(target);
}

double UsedOfTargets(const SimulationResult& result,
                     const workload::Targets& targets) {
  return ShareOf(result.ttft.p90, targets.ttft) +
         ShareOf(result.tpot.p90, targets.itl);
}

bool IsBetter(const SimulationResult& a, const SimulationResult& b,
              double attainment, const workload::Targets& targets) {
  const bool a_does = a.attainment >= attainment;
  const bool b_does = b.attainment >= attainment;
  if (a_does != b_does) return a_does;
  if (std::abs(a.attainment - b.attainment) > kSame) {
    return a.attainment > b.attainment;
  }
  return UsedOfTargets(a, targets) < UsedOfTargets(b, targets);
}

int64_t MostMisses(double attainment, size_t requests) {
  return static_cast<int64_t>(
      std::floor((1 - attainment) * static_cast<double>(requests) + 1e-9));
}

}  // namespace

PlanSearch::PlanSearch(const PlanOptions& options, const Load* load)
    : options_(options),
      load_(load),
      most_misses_(MostMisses(options.attainment, load->requests.size())) {
  CHECK_GE(options.least_workers, 1);
  CHECK_LE(options.least_workers, options.most_workers);
  CHECK(options.simulation.allow_local_prefill || options.most_workers >= 2);
}

int32_t PlanSearch::LeastPrefill() const {
  return options_.simulation.allow_local_prefill ? 0 : 1;
}

int32_t PlanSearch::MostPrefill(int32_t workers) const {
  return options_.only_aggregated ? 0 : workers - 1;
}

std::vector<int32_t> PlanSearch::CoarseSplits(int32_t workers) const {
  const int32_t least = LeastPrefill();
  const int32_t most = MostPrefill(workers);
  std::set<int32_t> splits;
  const int32_t count = workers <= kAllSplits ? most - least : kCoarse;
  for (int32_t i = 0; i <= count; ++i) {
    splits.insert(count == 0 ? least : least + (most - least) * i / count);
  }
  return {splits.begin(), splits.end()};
}

const PlanTrial& PlanSearch::Try(int32_t num_prefill, int32_t workers,
                                 bool to_the_end) {
  PlanTrial& trial = trials_[{num_prefill, workers}];
  const bool done =
      trial.num_decode > 0 && (!to_the_end || !trial.result.stopped_early);
  if (done) return trial;
  SimulationOptions simulation = options_.simulation;
  simulation.num_prefill = trial.num_prefill = num_prefill;
  simulation.num_decode = trial.num_decode = workers - num_prefill;
  if (!to_the_end) simulation.most_misses = most_misses_;
  trial.result = Simulate(simulation, load_->requests, load_->window);
  if (options_.progress) options_.progress(trial);
  return trial;
}

std::optional<double> PlanSearch::FindShare(int32_t workers) {
  const int32_t least = LeastPrefill();
  const int32_t most = MostPrefill(workers);
  if (least > most) return std::nullopt;
  // What did for another number of workers will mostly do for this one.
  std::vector<int32_t> splits = {std::clamp(
      static_cast<int32_t>(std::lround(share_ * workers)), least, most)};
  for (const int32_t split : CoarseSplits(workers)) splits.push_back(split);
  const auto does = [&](int32_t split) {
    return Try(split, workers, /*to_the_end=*/false).result.attainment >=
           options_.attainment;
  };
  int32_t best = splits.front();
  const auto share_of = [&](int32_t split) {
    return static_cast<double>(split) / workers;
  };
  for (const int32_t split : splits) {
    if (does(split)) return share_of(split);
    // Of runs that were given up, that which came furthest.
    if (Try(split, workers, false).result.met >
        Try(best, workers, false).result.met) {
      best = split;
    }
  }
  for (int32_t step = (most - least) / (2 * kCoarse); step > 0; step /= 2) {
    for (const int32_t split : {best - step, best + step}) {
      if (split < least || split > most) continue;
      if (does(split)) return share_of(split);
      if (Try(split, workers, false).result.met >
          Try(best, workers, false).result.met) {
        best = split;
      }
    }
  }
  return std::nullopt;
}

Plan PlanSearch::BestSplit(int32_t workers) {
  const int32_t least = LeastPrefill();
  const int32_t most = MostPrefill(workers);
  CHECK_LE(least, most);
  const workload::Targets& targets = options_.simulation.targets;
  std::vector<int32_t> splits = CoarseSplits(workers);
  splits.push_back(std::clamp(
      static_cast<int32_t>(std::lround(share_ * workers)), least, most));
  int32_t best = splits.front();
  const auto take = [&](int32_t split) {
    const PlanTrial& trial = Try(split, workers, /*to_the_end=*/true);
    if (IsBetter(trial.result, Try(best, workers, true).result,
                 options_.attainment, targets)) {
      best = split;
    }
  };
  for (const int32_t split : splits) take(split);
  for (int32_t step = (most - least) / (2 * kCoarse); step > 0; step /= 2) {
    for (const int32_t split : {best - step, best + step}) {
      if (split >= least && split <= most) take(split);
    }
  }
  Plan plan;
  plan.best = Try(best, workers, true);
  plan.found = plan.best.result.attainment >= options_.attainment;
  for (int32_t split = least; split <= most; ++split) {
    const auto trial = trials_.find({split, workers});
    if (trial != trials_.end() && !trial->second.result.stopped_early) {
      plan.splits.push_back(trial->second);
    }
  }
  return plan;
}

Plan PlanSearch::Find() {
  int32_t too_few = 0;  // the most that did not do; 0: none
  int32_t enough = 0;   // the fewest that did; 0: none
  int32_t workers = options_.least_workers;
  // Doubled until it does, then the interval is halved.
  while (true) {
    const std::optional<double> share = FindShare(workers);
    if (share.has_value()) {
      enough = workers;
      share_ = *share;
    } else {
      too_few = workers;
    }
    if (enough == 0) {
      if (workers == options_.most_workers) break;
      workers = static_cast<int32_t>(
          std::min<int64_t>(int64_t{2} * workers, options_.most_workers));
      continue;
    }
    const int32_t between = enough - too_few;
    if (too_few == 0 || between <= std::max(1, enough / kPrecision)) break;
    workers = too_few + between / 2;
  }
  Plan plan = BestSplit(enough > 0 ? enough : options_.most_workers);
  plan.too_few = too_few;
  return plan;
}

absl::StatusOr<std::vector<SensitivityCell>> Sensitivity(
    const SimulationOptions& options, const std::vector<double>& load_factors,
    const std::vector<double>& target_factors,
    const std::function<absl::StatusOr<Load>(double factor)>& load) {
  std::vector<SensitivityCell> cells;
  for (const double load_factor : load_factors) {
    // Of little load, half may be none.
    const absl::StatusOr<Load> loaded = load(load_factor);
    if (absl::IsInvalidArgument(loaded.status()) && load_factor != 1) continue;
    BATON_RETURN_IF_ERROR(loaded.status());
    const Load& scaled = *loaded;
    for (const double target_factor : target_factors) {
      SimulationOptions simulation = options;
      simulation.targets.ttft *= target_factor;
      simulation.targets.itl *= target_factor;
      const SimulationResult result =
          Simulate(simulation, scaled.requests, scaled.window);
      cells.push_back(
          {load_factor, target_factor, result.attainment, result.goodput});
    }
  }
  return cells;
}

}  // namespace baton::planner
