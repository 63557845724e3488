#include "router/worker_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "router/worker_snapshot.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

}  // namespace

WorkerRegistry::WorkerRegistry(const ServedModel& model, const Options& options,
                               absl::Time start)
    : model_(model), options_(options), start_(start) {}

int WorkerRegistry::Add(WorkerRole role, const std::string& address) {
  workers_.push_back({.role = role, .address = address});
  Refresh(start_);
  return static_cast<int>(workers_.size()) - 1;
}

WorkerId WorkerRegistry::Connected(int index, const v1::WorkerHello& hello,
                                   absl::Time now) {
  Worker& worker = workers_[index];
  CHECK(worker.id == kNoWorker) << worker.address;
  const bool restarted =
      worker.known && worker.hello.incarnation() != hello.incarnation();
  worker.id = WorkerId{++last_id_};
  worker.known = true;
  worker.unreachable.clear();
  worker.hello = hello;
  worker.draining = false;
  worker.reports = 0;
  worker.progressed_at = now;
  worker.breaker = scheduling::CircuitBreaker(options_.breaker);
  // In the operator's order, whoever comes first.
  const auto place = std::find_if(
      snapshot_.workers.begin(), snapshot_.workers.end(),
      [&](const WorkerSnapshot& w) { return IndexOf(w.id) > index; });
  snapshot_.workers.insert(place, IdleSnapshot(worker.id, worker.role, hello));
  LOG(INFO) << "worker " << Describe(index) << " joined"
            << (restarted ? ", restarted" : "") << ": " << hello.total_blocks()
            << " blocks of " << hello.fingerprint().block_size()
            << " tokens, at most " << hello.max_sequences() << " sequences";
  UpdateMisfits(index);
  Refresh(now);
  return worker.id;
}

WorkerId WorkerRegistry::Lost(int index) {
  Worker& worker = workers_[index];
  const WorkerId id = worker.id;
  if (id == kNoWorker) return kNoWorker;
  worker.id = kNoWorker;
  std::erase_if(snapshot_.workers,
                [&](const WorkerSnapshot& w) { return w.id == id; });
  std::erase_if(pairs_, [&](const auto& entry) {
    return entry.first.first == index || entry.first.second == index;
  });
  Refresh(start_);  // no new pair can come of a loss
  return id;
}

void WorkerRegistry::Reported(int index, const v1::LoadReport& load,
                              absl::Time now) {
  Worker& worker = workers_[index];
  WorkerSnapshot* snapshot = Find(worker.id);
  if (snapshot == nullptr) return;
  ++worker.reports;
  // What a prefill worker has computed waits for the decode worker and the
  // link, which may take longer; a decode worker's sequences take each step.
  const bool idle =
      load.queued_tokens() == 0 &&
      (worker.role == WorkerRole::kPrefill || load.running() == 0);
  if (idle || load.steps() != worker.steps) worker.progressed_at = now;
  worker.steps = load.steps();
  TakeReport(load, snapshot);
}

void WorkerRegistry::PairReported(int index, const v1::PairReport& report,
                                  absl::Time now) {
  for (auto& [key, state] : pairs_) {
    const auto [prefill, decode] = key;
    if (prefill != index ||
        workers_[decode].hello.incarnation() != report.decode_incarnation()) {
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
    state.paired = report.paired();
    state.reason = report.reason();
    if (report.bandwidth_bytes() > 0) state.measured = report;
    ever_paired_ = ever_paired_ || state.paired;
  }
  Refresh(now);
}

void WorkerRegistry::Unreachable(int index, const std::string& why) {
  workers_[index].unreachable = why;
}

void WorkerRegistry::Draining(WorkerId id) {
  const int index = IndexOf(id);
  if (index < 0 || workers_[index].draining) return;
  LOG(INFO) << "worker " << Describe(index) << " is draining";
  workers_[index].draining = true;
  Refresh(start_);
}

void WorkerRegistry::AttemptSent(WorkerId prefill, WorkerId decode,
                                 absl::Time now) {
  bool probes = false;
  const auto sent = [&](scheduling::CircuitBreaker* breaker) {
    breaker->Sent(now);
    probes = probes || !breaker->Allows(now);
  };
  for (WorkerId id : {prefill, decode}) {
    const int index = IndexOf(id);
    if (index >= 0) sent(&workers_[index].breaker);
  }
  if (PairState* pair = FindPair(prefill, decode)) sent(&pair->breaker);
  if (probes) Refresh(now);
}

void WorkerRegistry::LegSucceeded(WorkerId id, absl::Time now) {
  const int index = IndexOf(id);
  if (index < 0) return;
  const bool was_open = BreakerOpen(index, now);
  workers_[index].breaker.Succeeded();
  if (!was_open) return;
  LOG(INFO) << "worker " << Describe(index) << " works again";
  Refresh(now);
}

void WorkerRegistry::LegFailed(WorkerId id, absl::Time now) {
  const int index = IndexOf(id);
  if (index < 0) return;
  scheduling::CircuitBreaker& breaker = workers_[index].breaker;
  const bool allowed = breaker.Allows(now);
  breaker.Failed(now);
  LOG_IF(WARNING, allowed && !breaker.Allows(now))
      << "worker " << Describe(index)
      << " fails again and again; it gets no requests for "
      << breaker.NextDue(now) - now;
  Refresh(now);
}

void WorkerRegistry::TransferSucceeded(WorkerId prefill, WorkerId decode,
                                       absl::Time now) {
  PairState* pair = FindPair(prefill, decode);
  if (pair == nullptr) return;
  const bool was_open =
      pair->breaker.state(now) != scheduling::CircuitBreaker::State::kClosed;
  pair->breaker.Succeeded();
  if (was_open) Refresh(now);
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
  Refresh(now);
}

bool WorkerRegistry::BreakerOpen(int index, absl::Time now) const {
  const Worker& worker = workers_[index];
  return worker.id != kNoWorker &&
         worker.breaker.state(now) !=
             scheduling::CircuitBreaker::State::kClosed;
}

int WorkerRegistry::NumBreakersOpen(absl::Time now) const {
  int open = 0;
  for (size_t i = 0; i < workers_.size(); ++i) {
    open += BreakerOpen(static_cast<int>(i), now);
  }
  return open;
}

WorkerRegistry::PairState* WorkerRegistry::FindPair(WorkerId prefill,
                                                    WorkerId decode) {
  const auto it = pairs_.find({IndexOf(prefill), IndexOf(decode)});
  return it == pairs_.end() ? nullptr : &it->second;
}

void WorkerRegistry::PlacedDecode(WorkerId id, int32_t blocks) {
  if (WorkerSnapshot* worker = Find(id)) {
    ++worker->placed_sequences;
    worker->placed_blocks += blocks;
  }
}

void WorkerRegistry::EndedDecode(WorkerId id, int32_t blocks) {
  if (WorkerSnapshot* worker = Find(id)) {
    --worker->placed_sequences;
    worker->placed_blocks -= blocks;
  }
}

uint64_t WorkerRegistry::PlacedPrefill(WorkerId id, int32_t tokens) {
  WorkerSnapshot* worker = Find(id);
  if (worker == nullptr) return 0;
  worker->placed_tokens += tokens;
  return workers_[IndexOf(id)].reports;
}

void WorkerRegistry::EndedPrefill(WorkerId id, int32_t tokens,
                                  uint64_t report) {
  WorkerSnapshot* worker = Find(id);
  if (worker == nullptr || workers_[IndexOf(id)].reports != report) return;
  worker->placed_tokens -= tokens;
}

std::vector<WorkerRegistry::PairCommand> WorkerRegistry::DuePairs(
    absl::Time now) {
  Refresh(now);
  std::vector<PairCommand> due;
  for (auto& [key, state] : pairs_) {
    if (state.paired || state.due > now) continue;
    state.due = now + options_.max_pair_retry;
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
  absl::Time next = absl::InfiniteFuture();
  const auto open_until = [&](const scheduling::CircuitBreaker& breaker) {
    if (!breaker.Allows(now)) next = std::min(next, breaker.NextDue(now));
  };
  for (const auto& [key, state] : pairs_) {
    if (!state.paired) next = std::min(next, state.due);
    open_until(state.breaker);
  }
  for (const Worker& worker : workers_) {
    if (worker.id != kNoWorker) open_until(worker.breaker);
  }
  if (!snapshot_.allow_local_prefill) {
    next = std::min(next, start_ + options_.pairing_grace);
  }
  return next;
}

int WorkerRegistry::IndexOf(WorkerId id) const {
  if (id == kNoWorker) return -1;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].id == id) return static_cast<int>(i);
  }
  return -1;
}

std::string WorkerRegistry::NameOf(WorkerId id) const {
  const int index = IndexOf(id);
  if (index < 0) return "";
  const Worker& worker = workers_[index];
  return worker.hello.worker_name().empty() ? worker.address
                                            : worker.hello.worker_name();
}

std::string WorkerRegistry::Describe(int index) const {
  const Worker& worker = workers_[index];
  const std::string role = scheduling::WorkerRoleName(worker.role);
  return worker.known ? absl::StrCat(worker.hello.worker_name(), " (", role,
                                     ", ", worker.address, ")")
                      : absl::StrCat(role, " at ", worker.address);
}

bool WorkerRegistry::CouldPlace() const {
  return NumServing(WorkerRole::kDecode) > 0 &&
         (snapshot_.allow_local_prefill ||
          NumServing(WorkerRole::kPrefill) > 0);
}

std::string WorkerRegistry::WhyNot() const {
  const WorkerRole missing = NumServing(WorkerRole::kDecode) == 0
                                 ? WorkerRole::kDecode
                                 : WorkerRole::kPrefill;
  std::vector<std::string> reasons;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.role != missing) continue;
    const std::string state = WhyUnusable(static_cast<int>(i));
    reasons.push_back(absl::StrCat(Describe(static_cast<int>(i)), " ",
                                   state.empty() ? "is not paired" : state));
  }
  return absl::StrCat(
      "no ", scheduling::WorkerRoleName(missing), " worker can serve: ",
      reasons.empty() ? "none was named" : absl::StrJoin(reasons, "; "));
}

std::string WorkerRegistry::WhyUnusable(int index) const {
  const Worker& worker = workers_[index];
  if (worker.id == kNoWorker) {
    return absl::StrCat("is not connected",
                        worker.unreachable.empty() ? "" : ": ",
                        worker.unreachable);
  }
  if (!worker.misfit.empty()) {
    return absl::StrCat("does not fit: ", worker.misfit);
  }
  if (worker.draining) return "is draining";
  if (worker.stuck) return "makes no progress";
  return Find(worker.id)->usable ? "" : "fails again and again";
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

int WorkerRegistry::NumServing(WorkerRole role) const {
  return static_cast<int>(std::count_if(
      snapshot_.workers.begin(), snapshot_.workers.end(),
      [&](const WorkerSnapshot& worker) {
        if (worker.role != role || !worker.usable) return false;
        if (role == WorkerRole::kDecode) return true;
        return std::any_of(worker.paired_with.begin(), worker.paired_with.end(),
                           [&](WorkerId id) {
                             const WorkerSnapshot* decode = Find(id);
                             return decode != nullptr && decode->usable;
                           });
      }));
}

int WorkerRegistry::NumPairs() const {
  return static_cast<int>(
      std::count_if(pairs_.begin(), pairs_.end(),
                    [](const auto& entry) { return entry.second.paired; }));
}

int32_t WorkerRegistry::MaxContext() const {
  int64_t longest = 0;
  for (const WorkerSnapshot& worker : snapshot_.workers) {
    if (worker.role != WorkerRole::kDecode || !worker.usable) continue;
    const int64_t pool = int64_t{worker.total_blocks} * worker.block_size;
    longest = std::max(longest, std::min<int64_t>(worker.max_context, pool));
  }
  if (longest == 0) return model_.max_context;
  return static_cast<int32_t>(std::min<int64_t>(longest, model_.max_context));
}

const v1::ModelFingerprint* WorkerRegistry::Fingerprint() const {
  for (const Worker& worker : workers_) {
    if (worker.role == WorkerRole::kDecode && Usable(worker)) {
      return &worker.hello.fingerprint();
    }
  }
  return nullptr;
}

WorkerSnapshot* WorkerRegistry::Find(WorkerId id) {
  return const_cast<WorkerSnapshot*>(std::as_const(*this).Find(id));
}

const WorkerSnapshot* WorkerRegistry::Find(WorkerId id) const {
  for (const WorkerSnapshot& worker : snapshot_.workers) {
    if (worker.id == id) return &worker;
  }
  return nullptr;
}

bool WorkerRegistry::Usable(const Worker& worker) const {
  return worker.id != kNoWorker && worker.misfit.empty() && !worker.draining;
}

bool WorkerRegistry::Stuck(const Worker& worker, absl::Time now) const {
  // Who never reported is new, or speaks an older protocol.
  return worker.reports > 0 &&
         now - worker.progressed_at > options_.stuck_after;
}

void WorkerRegistry::Refresh(absl::Time now) {
  RefreshPairs(now);
  bool prefill_named = false;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    prefill_named = prefill_named || worker.role == WorkerRole::kPrefill;
    WorkerSnapshot* snapshot = Find(worker.id);
    if (snapshot == nullptr) continue;
    const bool stuck = Stuck(worker, now);
    LOG_IF(ERROR, stuck && !worker.stuck)
        << Describe(static_cast<int>(i)) << " makes no progress";
    num_stuck_changes_ += stuck != worker.stuck;
    worker.stuck = stuck;
    snapshot->usable = Usable(worker) && !stuck && worker.breaker.Allows(now);
    snapshot->paired_with.clear();
    snapshot->link_bandwidth.clear();
  }
  for (const auto& [key, state] : pairs_) {
    if (!state.paired || !state.breaker.Allows(now)) continue;
    WorkerSnapshot* prefill = Find(workers_[key.first].id);
    prefill->paired_with.push_back(workers_[key.second].id);
    prefill->link_bandwidth.push_back(state.measured.bandwidth_bytes());
  }
  grace_over_ = grace_over_ || now >= start_ + options_.pairing_grace;
  snapshot_.allow_local_prefill = !prefill_named || ever_paired_ || grace_over_;
}

void WorkerRegistry::RefreshPairs(absl::Time now) {
  for (size_t p = 0; p < workers_.size(); ++p) {
    for (size_t d = 0; d < workers_.size(); ++d) {
      const Worker& prefill = workers_[p];
      const Worker& decode = workers_[d];
      if (prefill.role != WorkerRole::kPrefill ||
          decode.role != WorkerRole::kDecode) {
        continue;
      }
      const PairKey key(static_cast<int>(p), static_cast<int>(d));
      const bool fit = prefill.id != kNoWorker && decode.id != kNoWorker &&
                       prefill.misfit.empty() && decode.misfit.empty() &&
                       Difference(prefill, decode).empty();
      if (!fit) {
        pairs_.erase(key);
      } else if (pairs_.count(key) == 0) {
        pairs_[key] = {.due = now,
                       .backoff = options_.min_pair_retry,
                       .breaker = scheduling::CircuitBreaker(options_.breaker)};
      }
    }
  }
}

}  // namespace baton::router
