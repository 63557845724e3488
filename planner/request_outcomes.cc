#include "planner/request_outcomes.h"

#include <algorithm>
#include <utility>

namespace baton::planner {

RequestOutcomes::RequestOutcomes(
    absl::Span<const workload::PlannedRequest> requests,
    const workload::Targets& targets, double timeout_seconds)
    : requests_(requests),
      targets_(targets),
      timeout_(timeout_seconds),
      states_(requests.size()) {}

void RequestOutcomes::Miss(State* state) {
  misses_ += !state->missed;
  state->missed = true;
}

void RequestOutcomes::FirstToken(uint32_t request, double now) {
  State& state = states_[request];
  state.first_at = now;
  if (!targets_.Met(absl::Seconds(now - ArrivalOf(request)),
                    absl::ZeroDuration())) {
    state.missed_ttft = true;
    Miss(&state);
  }
}

void RequestOutcomes::Gap(uint32_t request, double seconds) {
  float& longest = states_[request].longest_gap;
  longest = std::max(longest, static_cast<float>(seconds));
}

void RequestOutcomes::Finished(uint32_t request, double now) {
  State& state = states_[request];
  if (now - ArrivalOf(request) > timeout_) return Miss(&state);
  state.end = End::kFinished;
  state.last_at = now;
  const int32_t later = requests_[request].output_tokens - 1;
  const double tpot = later > 0 ? (now - state.first_at) / later : 0;
  if (targets_.Met(absl::ZeroDuration(), absl::Seconds(tpot))) return;
  state.missed_tpot = true;
  Miss(&state);
}

void RequestOutcomes::Rejected(uint32_t request) {
  states_[request].end = End::kRejected;
  Miss(&states_[request]);
}

void RequestOutcomes::Expired(uint32_t request) { Miss(&states_[request]); }

SimulationResult RequestOutcomes::Sum(absl::Duration window) const {
  SimulationResult sum;
  sum.offered = static_cast<int64_t>(requests_.size());
  sum.window_seconds = absl::ToDoubleSeconds(window);
  std::vector<double> ttft, tpot, e2e, longest;
  for (size_t i = 0; i < states_.size(); ++i) {
    const State& state = states_[i];
    const double arrival = ArrivalOf(static_cast<uint32_t>(i));
    if (state.first_at >= 0) ttft.push_back(1e3 * (state.first_at - arrival));
    sum.rejected += state.end == End::kRejected;
    if (state.end != End::kFinished) continue;
    ++sum.finished;
    sum.met += !state.missed;
    sum.missed_ttft += state.missed_ttft;
    sum.missed_tpot += state.missed_tpot;
    const int32_t output = requests_[i].output_tokens;
    sum.prompt_tokens += requests_[i].prompt_tokens;
    sum.output_tokens += output;
    e2e.push_back(1e3 * (state.last_at - arrival));
    if (output < 2) continue;
    tpot.push_back(1e3 * (state.last_at - state.first_at) / (output - 1));
    longest.push_back(1e3 * state.longest_gap);
  }
  sum.unfinished = sum.offered - sum.finished - sum.rejected;
  if (sum.offered > 0) {
    sum.attainment =
        static_cast<double>(sum.met) / static_cast<double>(sum.offered);
  }
  if (sum.window_seconds > 0) {
    sum.goodput = static_cast<double>(sum.met) / sum.window_seconds;
  }
  sum.ttft = workload::PercentilesOf(std::move(ttft));
  sum.tpot = workload::PercentilesOf(std::move(tpot));
  sum.e2e = workload::PercentilesOf(std::move(e2e));
  sum.longest_gap = workload::PercentilesOf(std::move(longest));
  return sum;
}

}  // namespace baton::planner
