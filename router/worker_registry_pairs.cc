// WorkerRegistry: who is paired with whom.
#include <algorithm>
#include <vector>

#include "common/log.h"
#include "router/worker_registry.h"

namespace baton::router {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

void WorkerRegistry::PairReported(int index, const v1::PairReport& report,
                                  absl::Time now) {
  for (auto it = pairs_.lower_bound({index, 0});
       it != pairs_.end() && it->first.first == index; ++it) {
    auto& [key, state] = *it;
    const auto [prefill, decode] = key;
    if (workers_[decode].hello.incarnation() != report.decode_incarnation()) {
      continue;
    }
    if (report.paired()) {
      LOG_IF(INFO, !state.paired)
          << "paired " << Describe(prefill) << " with " << Describe(decode);
      state.backoff = options_.min_pair_retry;
    } else {
      LOG(ERROR) << Describe(prefill) << " cannot pair with "
                 << Describe(decode) << ": " << report.reason();
      state.due = now + state.backoff;
      state.backoff = std::min(2 * state.backoff, options_.max_pair_retry);
    }
    num_pairs_ += int{report.paired()} - int{state.paired};
    state.paired = report.paired();
    state.reason = report.reason();
    if (report.bandwidth_bytes() > 0) state.measured = report;
    ever_paired_ = ever_paired_ || state.paired;
    UpdatePair(key, &state, now);
  }
  RefreshGrace(now);
}

void WorkerRegistry::TransferSucceeded(WorkerId prefill, WorkerId decode,
                                       absl::Time now) {
  PairState* pair = FindPair(prefill, decode);
  if (pair == nullptr) return;
  const bool was_open =
      pair->breaker.state(now) != scheduling::CircuitBreaker::State::kClosed;
  pair->breaker.Succeeded();
  if (was_open) UpdatePair({IndexOf(prefill), IndexOf(decode)}, pair, now);
}

void WorkerRegistry::TransferFailed(WorkerId prefill, WorkerId decode,
                                    absl::Time now) {
  PairState* pair = FindPair(prefill, decode);
  if (pair == nullptr) return;
  const bool allowed = pair->breaker.Allows(now);
  pair->breaker.Failed(now);
  LOG_IF(WARNING, allowed && !pair->breaker.Allows(now))
      << "hand-offs from " << NameOf(prefill) << " to " << NameOf(decode)
      << " fail again and again; the pair gets no requests for "
      << pair->breaker.NextDue(now) - now;
  UpdatePair({IndexOf(prefill), IndexOf(decode)}, pair, now);
}

WorkerRegistry::PairState* WorkerRegistry::FindPair(WorkerId prefill,
                                                    WorkerId decode) {
  const auto it = pairs_.find({IndexOf(prefill), IndexOf(decode)});
  return it == pairs_.end() ? nullptr : &it->second;
}

std::vector<WorkerRegistry::PairCommand> WorkerRegistry::DuePairs(
    absl::Time now) {
  snapshot_.now = std::max(snapshot_.now, now);
  for (size_t i = 0; i < workers_.size(); ++i) {
    RefreshWorker(static_cast<int>(i), now);
  }
  RefreshGrace(now);
  std::vector<PairCommand> due;
  while (!pair_timers_.empty() && pair_timers_.begin()->first <= now) {
    const PairKey key = pair_timers_.begin()->second;
    PairState& state = pairs_.at(key);
    const bool ask = !state.paired && state.due <= now;
    if (ask) state.due = now + options_.max_pair_retry;
    UpdatePair(key, &state, now);
    CHECK_GT(state.timer, now);
    if (!ask) continue;
    const v1::WorkerHello& decode = workers_[key.second].hello;
    PairCommand command;
    command.prefill = key.first;
    command.pair.set_decode_incarnation(decode.incarnation());
    command.pair.set_data_address(decode.data_address());
    due.push_back(std::move(command));
  }
  return due;
}

absl::Time WorkerRegistry::NextDue(absl::Time now) const {
  absl::Time next = pair_timers_.empty() ? absl::InfiniteFuture()
                                         : pair_timers_.begin()->first;
  const auto open_until = [&](const scheduling::CircuitBreaker& breaker) {
    if (!breaker.Allows(now)) next = std::min(next, breaker.NextDue(now));
  };
  for (const Worker& worker : workers_) {
    if (worker.id != kNoWorker) open_until(worker.breaker);
  }
  if (options_.local_prefill && !snapshot_.allow_local_prefill) {
    next = std::min(next, start_ + options_.pairing_grace);
  }
  return next;
}

std::vector<WorkerRegistry::Link> WorkerRegistry::Links(absl::Time now) const {
  std::vector<Link> links;
  for (const auto& [key, state] : pairs_) {
    Link& link = links.emplace_back();
    link.prefill = key.first;
    link.decode = key.second;
    if (!state.paired) {
      link.why_not = state.reason.empty() ? "is not paired" : state.reason;
    } else if (!state.breaker.Allows(now)) {
      link.why_not = "hand-offs fail again and again";
    }
    link.transport = state.measured.transport();
    link.bandwidth_bytes = state.measured.bandwidth_bytes();
    link.latency = absl::Seconds(state.measured.latency_seconds());
  }
  return links;
}

void WorkerRegistry::RefreshPairsOf(int index, absl::Time now) {
  const bool is_prefill = workers_[index].role == WorkerRole::kPrefill;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const int other = static_cast<int>(i);
    if (workers_[other].role == workers_[index].role) continue;
    const PairKey key =
        is_prefill ? PairKey(index, other) : PairKey(other, index);
    const Worker& prefill = workers_[key.first];
    const Worker& decode = workers_[key.second];
    // The two sides of a dual worker have nothing to send to each other.
    const bool same_process = prefill.hello.process() != 0 &&
                              prefill.hello.process() == decode.hello.process();
    const bool fit = !same_process && prefill.id != kNoWorker &&
                     decode.id != kNoWorker && prefill.misfit.empty() &&
                     decode.misfit.empty() &&
                     Difference(prefill, decode).empty();
    if (!fit) {
      ErasePair(key);
      continue;
    }
    const auto [it, added] = pairs_.try_emplace(key);
    if (!added) continue;
    PairState& state = it->second;
    state.due = now;
    state.backoff = options_.min_pair_retry;
    state.breaker = scheduling::CircuitBreaker(options_.breaker);
    UpdatePair(key, &state, now);
  }
}

void WorkerRegistry::ErasePairsOf(int index) {
  for (size_t i = 0; i < workers_.size(); ++i) {
    const int other = static_cast<int>(i);
    ErasePair({index, other});
    ErasePair({other, index});
  }
}

void WorkerRegistry::ErasePair(const PairKey& key) {
  const auto it = pairs_.find(key);
  if (it == pairs_.end()) return;
  PairState& state = it->second;
  num_pairs_ -= int{state.paired};
  SetLink(key, /*usable=*/false, 0);
  SetTimer(key, &state, absl::InfiniteFuture());
  pairs_.erase(it);
}

void WorkerRegistry::UpdatePair(const PairKey& key, PairState* state,
                                absl::Time now) {
  const bool allowed = state->breaker.Allows(now);
  SetLink(key, state->paired && allowed, state->measured.bandwidth_bytes());
  absl::Time at = state->paired ? absl::InfiniteFuture() : state->due;
  if (!allowed) at = std::min(at, state->breaker.NextDue(now));
  SetTimer(key, state, at);
}

void WorkerRegistry::SetTimer(const PairKey& key, PairState* state,
                              absl::Time at) {
  if (state->timer == at) return;
  if (state->timer != absl::InfiniteFuture()) {
    pair_timers_.erase({state->timer, key});
  }
  if (at != absl::InfiniteFuture()) pair_timers_.emplace(at, key);
  state->timer = at;
}

void WorkerRegistry::SetLink(const PairKey& key, bool usable,
                             double bandwidth) {
  WorkerSnapshot* const prefill = Find(workers_[key.first].id);
  const WorkerId decode = workers_[key.second].id;
  std::vector<WorkerId>& paired = prefill->paired_with;
  std::vector<double>& bandwidths = prefill->link_bandwidth;
  const auto it = std::lower_bound(paired.begin(), paired.end(), decode);
  const auto at = it - paired.begin();
  const bool there = it != paired.end() && *it == decode;
  if (!usable) {
    if (!there) return;
    paired.erase(it);
    bandwidths.erase(bandwidths.begin() + at);
    return;
  }
  if (!there) {
    paired.insert(it, decode);
    bandwidths.insert(bandwidths.begin() + at, 0);
  }
  bandwidths[at] = bandwidth;
}

}  // namespace baton::router
