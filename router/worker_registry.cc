#include "router/worker_registry.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "router/worker_snapshot.h"
#include "scheduling/placement_room.h"

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
  const auto free = std::find_if(workers_.begin(), workers_.end(),
                                 [](const Worker& w) { return w.removed; });
  const auto index = static_cast<int>(free - workers_.begin());
  if (free == workers_.end()) {
    workers_.emplace_back();
    place_.push_back(-1);
  }
  workers_[index] = {.role = role, .address = address};
  prefill_named_ = prefill_named_ || role == WorkerRole::kPrefill;
  RefreshGrace(start_);
  return index;
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
  worker.fingerprint = hello.fingerprint().SerializeAsString();
  if (hello.takes_grammars()) worker.fingerprint.append("/grammars");
  if (!options_.mixed_backends) {
    absl::StrAppend(&worker.fingerprint, "/", hello.backend());
  }
  worker.draining = false;
  // Until its first report: a side that stands by serves, too.
  worker.standby = false;
  worker.process_role = worker.role;
  num_dual_ += hello.process() != 0;
  worker.attempts = 0;
  worker.reports = 0;
  worker.progressed_at = now;
  worker.breaker = scheduling::CircuitBreaker(options_.breaker);
  index_of_[worker.id] = index;
  // In the operator's order, whoever comes first.
  const auto place = std::find_if(
      snapshot_.workers.begin(), snapshot_.workers.end(),
      [&](const WorkerSnapshot& w) { return IndexOf(w.id) > index; });
  snapshot_.workers.insert(place, IdleSnapshot(worker.id, worker.role, hello))
      ->reported_at = now;
  RefreshPlaces();
  LOG(INFO) << "worker " << Describe(index) << " joined"
            << (restarted ? ", restarted" : "") << ": " << hello.total_blocks()
            << " blocks of " << hello.fingerprint().block_size()
            << " tokens, at most " << hello.max_sequences() << " sequences";
  std::vector<int> changed = UpdateMisfits(index);
  changed.push_back(index);
  for (int each : changed) {
    RefreshPairsOf(each, now);
    RefreshWorker(each, now);
  }
  RefreshGrace(now);
  return worker.id;
}

WorkerId WorkerRegistry::Lost(int index) {
  Worker& worker = workers_[index];
  const WorkerId id = worker.id;
  if (id == kNoWorker) return kNoWorker;
  ErasePairsOf(index);
  num_dual_ -= worker.hello.process() != 0;
  index_of_.erase(id);
  worker.id = kNoWorker;
  std::erase_if(snapshot_.workers,
                [&](const WorkerSnapshot& w) { return w.id == id; });
  RefreshPlaces();
  UpdateBackends();
  UpdateAdapters();
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
  snapshot->reported_at = now;
  if (worker.hello.process() != 0) {
    worker.process_role = load.role() == v1::WORKER_ROLE_PREFILL
                              ? WorkerRole::kPrefill
                              : WorkerRole::kDecode;
  }
  if (worker.hello.process() != 0 && load.standby() != worker.standby) {
    worker.standby = load.standby();
    ++num_role_changes_;
    LOG(INFO) << "worker " << Describe(index)
              << (worker.standby ? " stands by" : " takes requests");
    RefreshWorker(index, now);
  }
  snapshot_.now = std::max(snapshot_.now, now);
}

void WorkerRegistry::Unreachable(int index, const std::string& why) {
  workers_[index].unreachable = why;
}

void WorkerRegistry::Draining(WorkerId id) {
  const int index = IndexOf(id);
  if (index < 0 || workers_[index].draining) return;
  LOG(INFO) << "worker " << Describe(index) << " is draining";
  workers_[index].draining = true;
  Find(id)->usable = false;
}

void WorkerRegistry::AttemptSent(WorkerId prefill, WorkerId decode,
                                 absl::Time now) {
  for (WorkerId id : {prefill, decode}) {
    const int index = IndexOf(id);
    if (index < 0) continue;
    workers_[index].breaker.Sent(now);
    ++workers_[index].attempts;
    RefreshWorker(index, now);
  }
  if (PairState* pair = FindPair(prefill, decode)) {
    pair->breaker.Sent(now);
    UpdatePair({IndexOf(prefill), IndexOf(decode)}, pair, now);
  }
}

void WorkerRegistry::LegSucceeded(WorkerId id, absl::Time now) {
  const int index = IndexOf(id);
  if (index < 0) return;
  const bool was_open = BreakerOpen(index, now);
  workers_[index].breaker.Succeeded();
  if (!was_open) return;
  LOG(INFO) << "worker " << Describe(index) << " works again";
  RefreshWorker(index, now);
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
  RefreshWorker(index, now);
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

int32_t WorkerRegistry::BlocksTaken(
    WorkerId id, const scheduling::PlacementRequest& request) const {
  const WorkerSnapshot* worker = Find(id);
  return worker == nullptr ? 0 : scheduling::BlocksTaken(*worker, request);
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
  ++worker->placed_prompts;
  worker->placed_tokens += tokens;
  return workers_[IndexOf(id)].reports;
}

void WorkerRegistry::EndedPrefill(WorkerId id, int32_t tokens,
                                  uint64_t report) {
  WorkerSnapshot* worker = Find(id);
  if (worker == nullptr || workers_[IndexOf(id)].reports != report) return;
  --worker->placed_prompts;
  worker->placed_tokens -= tokens;
}

int WorkerRegistry::IndexOf(WorkerId id) const {
  const auto it = index_of_.find(id);
  return it == index_of_.end() ? -1 : it->second;
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
    if (worker.removed || worker.role != missing) continue;
    const std::string state = WhyUnusable(static_cast<int>(i));
    reasons.push_back(absl::StrCat(Describe(static_cast<int>(i)), " ",
                                   state.empty() ? "is not paired" : state));
  }
  for (const auto& [source, why_none] : sources_) {
    if (source.first != missing) continue;
    if (why_none.empty() && !reasons.empty()) continue;
    reasons.push_back(absl::StrCat(
        source.second, why_none.empty() ? " has none" : ": ", why_none));
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
  if (worker.withdrawn) return "is not in DNS any more";
  if (worker.stuck) return "makes no progress";
  if (worker.standby) {
    return worker.process_role == worker.role
               ? "stands by until its streams are over"
               : "stands by, it has the other role";
  }
  return Find(worker.id)->usable ? "" : "fails again and again";
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

bool WorkerRegistry::TakesGrammars() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [this](const Worker& worker) {
                       return !Usable(worker) || worker.hello.takes_grammars();
                     });
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
  const int index = IndexOf(id);
  return index < 0 ? nullptr : &snapshot_.workers[place_[index]];
}

void WorkerRegistry::RefreshPlaces() {
  std::fill(place_.begin(), place_.end(), -1);
  for (size_t i = 0; i < snapshot_.workers.size(); ++i) {
    place_[IndexOf(snapshot_.workers[i].id)] = static_cast<int>(i);
  }
}

bool WorkerRegistry::Usable(const Worker& worker) const {
  return UsableInRole(worker) && !worker.standby;
}

bool WorkerRegistry::StandsBy(int index, absl::Time now) const {
  const Worker& worker = workers_[index];
  return UsableInRole(worker) && !worker.stuck && worker.standby &&
         !BreakerOpen(index, now);
}

bool WorkerRegistry::UsableInRole(const Worker& worker) const {
  return worker.id != kNoWorker && worker.misfit.empty() && !worker.draining &&
         !worker.withdrawn;
}

bool WorkerRegistry::Stuck(const Worker& worker, absl::Time now) const {
  // Who never reported is new, or speaks an older protocol.
  return worker.reports > 0 &&
         now - worker.progressed_at > options_.stuck_after;
}

void WorkerRegistry::RefreshWorker(int index, absl::Time now) {
  Worker& worker = workers_[index];
  WorkerSnapshot* snapshot = Find(worker.id);
  if (snapshot == nullptr) return;
  const bool stuck = Stuck(worker, now);
  LOG_IF(ERROR, stuck && !worker.stuck)
      << Describe(index) << " makes no progress";
  num_stuck_changes_ += stuck != worker.stuck;
  worker.stuck = stuck;
  snapshot->usable = Usable(worker) && !stuck && worker.breaker.Allows(now);
}

void WorkerRegistry::RefreshGrace(absl::Time now) {
  grace_over_ = grace_over_ || now >= start_ + options_.pairing_grace;
  snapshot_.allow_local_prefill =
      options_.local_prefill &&
      (!prefill_named_ || ever_paired_ || grace_over_);
}

}  // namespace baton::router
