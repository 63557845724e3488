#include "scheduling/role_balance.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

#include "common/log.h"
#include "scheduling/step_budget.h"

namespace baton::scheduling {
namespace {

// Within this, workers report that they have the role that was asked for.
constexpr double kAnswerSeconds = 5;

// Once workers change, they do until hardly anything is to be had by it.
constexpr double kMarginToGoOn = 0.01;

double Ratio(double a, double b) {
  return b > 0 ? a / b : std::numeric_limits<double>::infinity();
}

// The terms of the header's formula.
struct Terms {
  double answer = 0;  // m_o
  double prompt = 0;  // m_p
  double fixed = 0;   // f
  double share = 0;   // 1 - f / tau
  double stream = 0;  // s
  double token = 0;   // c
  double mu = 0;
  double held_seconds = 0;  // R
};

// For a prompt token, on average.
double TokenSeconds(const RequestMean& mix, const StepCost& cost) {
  if (mix.computed_tokens <= 0) return cost.per_token;
  return cost.per_token + (cost.per_prompt_context_token * mix.prompt_context +
                           cost.per_sequence) /
                              mix.computed_tokens;
}

Terms TermsOf(const RoleLoad& load) {
  const RequestMean& mix = load.mix;
  const bool has_decode = load.decode_cost.known();
  const bool has_prefill = load.prefill_cost.known();
  const StepCost& decode = has_decode ? load.decode_cost : load.prefill_cost;
  const StepCost& prefill = has_prefill ? load.prefill_cost : load.decode_cost;
  Terms terms;
  // The first token comes with the prompt.
  terms.answer = std::max(0.0, mix.output_tokens - 1);
  terms.prompt = mix.computed_tokens;
  terms.fixed = decode.fixed;
  terms.stream = decode.per_token + decode.per_sequence +
                 decode.per_context_token * mix.stream_context;
  const double tau = std::max(mix.itl_target_seconds > 0
                                  ? StepBudgetSeconds(mix.itl_target_seconds)
                                  : load.default_step_seconds,
                              decode.fixed + terms.stream);
  terms.share = tau > 0 ? 1 - decode.fixed / tau : 1;
  terms.token = TokenSeconds(mix, decode);
  const double budget = load.token_budget;
  terms.mu = Ratio(budget, prefill.fixed + budget * TokenSeconds(mix, prefill));
  terms.held_seconds = terms.prompt / terms.mu;
  return terms;
}

// The header's M.
double Places(const RoleLoad& load, double decode) {
  const double all = decode * load.most_streams;
  // Of very few, the rule would leave none.
  return std::max(all - std::sqrt(all), all / 2) / decode;
}

// What decode workers carry when a request takes `seconds` of their time (w)
// besides what steps cost at all, and prefill workers give them so much of
// theirs (e).
double DecodeCapacity(const Terms& terms, double decode, double places,
                      double seconds, double given) {
  const double held = terms.held_seconds;
  const double a = seconds * held / decode;
  const double b = terms.answer * terms.fixed + seconds * places +
                   held * (1 + given / decode);
  const double c = places * (decode + given);
  // In the form that keeps its digits when a is small, or 0.
  const double root = std::sqrt(std::max(0.0, b * b - 4 * a * c));
  return std::min(Ratio(decode * terms.share + given, seconds),
                  Ratio(2 * c, b + root));
}

int32_t Count(const RoleInputs& inputs, WorkerRole role) {
  return static_cast<int32_t>(
      std::count_if(inputs.workers.begin(), inputs.workers.end(),
                    [role](const auto& w) { return w.role == role; }));
}

RoleCounts CountsOf(const RoleInputs& inputs) {
  RoleCounts counts;
  for (const RoleWorker& worker : inputs.workers) {
    if (worker.can_change) {
      ++counts.either;
    } else if (worker.role == WorkerRole::kPrefill) {
      ++counts.only_prefill;
    } else {
      ++counts.only_decode;
    }
  }
  return counts;
}

}  // namespace

bool IsKnown(const RoleLoad& load) {
  return load.mix.weight > 0 &&
         (load.mix.computed_tokens > 0 || load.mix.output_tokens > 1) &&
         (load.prefill_cost.known() || load.decode_cost.known());
}

double SplitCapacity(const RoleLoad& load, int32_t num_prefill,
                     int32_t num_decode, double left_over_cost) {
  CHECK_GE(num_prefill, 0);
  CHECK_GE(num_decode, 0);
  CHECK_GE(load.token_budget, 1);
  CHECK_GE(load.most_streams, 1);
  if (num_decode == 0 || !IsKnown(load)) return 0;
  if (num_prefill == 0 && !load.allow_local_prefill) return 0;
  Terms terms = TermsOf(load);
  terms.token *= left_over_cost;
  const double answers = terms.answer * terms.stream;
  const double places = Places(load, num_decode);
  double capacity = DecodeCapacity(terms, num_decode, places, answers, 0);
  if (terms.prompt > 0 && !load.allow_local_prefill) {
    capacity = std::min(capacity, num_prefill * terms.mu / terms.prompt);
  } else if (terms.prompt > 0 && std::isfinite(terms.mu)) {
    capacity = std::min(capacity,
                        DecodeCapacity(terms, num_decode, places,
                                       answers + terms.prompt * terms.token,
                                       num_prefill * terms.mu * terms.token));
  }
  return std::isfinite(capacity) ? capacity : 0;
}

int32_t BestPrefillWorkers(const RoleLoad& load, const RoleCounts& counts,
                           double prefill_margin) {
  const int32_t workers =
      counts.only_prefill + counts.only_decode + counts.either;
  CHECK_GE(workers, 1);
  CHECK(IsKnown(load));
  int32_t least = counts.only_prefill;
  int32_t most = least + counts.either;
  if (counts.only_decode == 0) most = std::max(least, most - 1);
  if (!load.allow_local_prefill) least = std::min(std::max(least, 1), most);
  int32_t best = least;
  double carries = 0;
  for (int32_t prefill = std::max(least, 1); prefill <= most; ++prefill) {
    const double of_this =
        SplitCapacity(load, prefill, workers - prefill, kLeftOverCost);
    if (of_this <= carries) continue;
    carries = of_this;
    best = prefill;
  }
  if (least > 0 || best == 0) return best;
  return SplitRatio(load, workers, best, 0, prefill_margin) > 1 ? best : 0;
}

double SplitRatio(const RoleLoad& load, int32_t workers, int32_t num_prefill,
                  int32_t others, double prefill_margin) {
  // Without prefill workers, all prompts are computed beside streams anyway.
  const double cost = num_prefill > 0 && others > 0 ? kLeftOverCost : 1;
  const double margin =
      std::max(prefill_margin, kFewWorkersMargin / std::sqrt(workers));
  const auto counts = [&](int32_t prefill) {
    return SplitCapacity(load, prefill, workers - prefill, cost) *
           (prefill == 0 ? 1 + margin : 1);
  };
  return counts(num_prefill) / counts(others);
}

bool TakesWork(WorkerRole side, bool has_role, int64_t streams,
               double seconds) {
  if (!has_role || side == WorkerRole::kDecode) return has_role;
  return streams <= 0 || seconds >= kMostWaitSeconds;
}

RoleBalance::RoleBalance(const RoleBalanceOptions& options)
    : options_(options) {
  CHECK_GE(options.workers_per_change, 1);
}

std::vector<RoleChange> RoleBalance::Decide(const RoleInputs& inputs) {
  std::erase_if(worker_changed_at_, [&](const auto& entry) {
    return entry.second + options_.worker_dwell_seconds <= inputs.now;
  });
  if (inputs.workers.empty()) return {};
  // Nothing is served without.
  if (Count(inputs, WorkerRole::kDecode) == 0) {
    return Change(inputs, WorkerRole::kDecode, 1, /*at_once=*/true);
  }
  if (!inputs.load.allow_local_prefill &&
      Count(inputs, WorkerRole::kPrefill) == 0 &&
      Count(inputs, WorkerRole::kDecode) > 1) {
    return Change(inputs, WorkerRole::kPrefill, 1, /*at_once=*/true);
  }
  const std::optional<int32_t> more_prefill = Wants(inputs);
  if (!more_prefill.has_value()) {
    wanted_.reset();
    return {};
  }
  const WorkerRole role =
      *more_prefill > 0 ? WorkerRole::kPrefill : WorkerRole::kDecode;
  if (wanted_ != role) {
    wanted_ = role;
    wanted_since_ = inputs.now;
    going_on_ = false;
  }
  if (inputs.now < wanted_since_ + options_.hold_seconds) return {};
  if (changed_at_.has_value() &&
      inputs.now < *changed_at_ + options_.dwell_seconds) {
    return {};
  }
  const auto workers = static_cast<int32_t>(inputs.workers.size());
  const int32_t most = std::max(1, workers / options_.workers_per_change);
  return Change(inputs, role, std::min(std::abs(*more_prefill), most),
                /*at_once=*/false);
}

std::optional<int32_t> RoleBalance::Wants(const RoleInputs& inputs) const {
  if (!IsKnown(inputs.load) || inputs.load.mix.weight < options_.least_weight) {
    return std::nullopt;
  }
  const auto workers = static_cast<int32_t>(inputs.workers.size());
  const int32_t prefill = Count(inputs, WorkerRole::kPrefill);
  const int32_t best = BestPrefillWorkers(inputs.load, CountsOf(inputs),
                                          options_.prefill_margin);
  const bool goes_on =
      going_on_ &&
      wanted_ == (best > prefill ? WorkerRole::kPrefill : WorkerRole::kDecode);
  const double margin =
      goes_on ? kMarginToGoOn
              : options_.margin +
                    options_.noise / std::sqrt(inputs.load.mix.weight);
  // The present split may carry nothing: no decode workers, say.
  if (best == prefill || !(SplitRatio(inputs.load, workers, best, prefill,
                                      options_.prefill_margin) >= 1 + margin)) {
    return std::nullopt;
  }
  return best - prefill;
}

std::vector<RoleChange> RoleBalance::Change(const RoleInputs& inputs,
                                            WorkerRole role, int32_t count,
                                            bool at_once) {
  std::vector<size_t> places;
  for (size_t i = 0; i < inputs.workers.size(); ++i) {
    const RoleWorker& worker = inputs.workers[i];
    const auto changed = worker_changed_at_.find(worker.id);
    const double asked_before = changed == worker_changed_at_.end()
                                    ? std::numeric_limits<double>::infinity()
                                    : inputs.now - changed->second;
    // What was asked for just now is on its way: nobody else changes for it.
    if (at_once && asked_before < kAnswerSeconds) return {};
    if (worker.can_change && worker.role != role &&
        (at_once || changed == worker_changed_at_.end())) {
      places.push_back(i);
    }
  }
  const auto work = [&](size_t place) {
    const RoleWorker& worker = inputs.workers[place];
    return role == WorkerRole::kDecode
               ? std::make_tuple(worker.queued_tokens, int64_t{worker.streams},
                                 worker.id)
               : std::make_tuple(int64_t{worker.streams}, worker.queued_tokens,
                                 worker.id);
  };
  std::sort(places.begin(), places.end(),
            [&](size_t a, size_t b) { return work(a) < work(b); });
  if (places.size() > static_cast<size_t>(count)) {
    places.resize(static_cast<size_t>(count));
  }
  std::vector<RoleChange> changes;
  for (const size_t place : places) {
    changes.push_back({place, role});
    worker_changed_at_[inputs.workers[place].id] = inputs.now;
  }
  if (!changes.empty()) {
    changed_at_ = inputs.now;
    going_on_ = true;
  }
  return changes;
}

}  // namespace baton::scheduling
