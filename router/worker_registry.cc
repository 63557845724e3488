#include "router/worker_registry.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/log.h"
#include "proto/fingerprint.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using scheduling::WorkerSnapshot;

int32_t Clamped(uint64_t value) {
  return static_cast<int32_t>(
      std::min<uint64_t>(value, std::numeric_limits<int32_t>::max()));
}

v1::WorkerRole ToWire(WorkerRole role) {
  switch (role) {
    case WorkerRole::kPrefill:
      return v1::WORKER_ROLE_PREFILL;
    case WorkerRole::kDecode:
      return v1::WORKER_ROLE_DECODE;
  }
  LOG(FATAL) << "WorkerRole " << static_cast<int>(role);
}

// Before its first report a worker counts as idle.
WorkerSnapshot Idle(WorkerId id, WorkerRole role, const v1::WorkerHello& h) {
  return {.id = id,
          .role = role,
          .block_size = Clamped(h.fingerprint().block_size()),
          .total_blocks = Clamped(h.total_blocks()),
          .max_sequences = Clamped(h.max_sequences()),
          .max_context = Clamped(h.max_context()),
          .max_queued_tokens = static_cast<int64_t>(std::min<uint64_t>(
              h.max_queued_tokens(), std::numeric_limits<int64_t>::max())),
          .free_blocks = Clamped(h.total_blocks())};
}

std::string Difference(const WorkerRegistry::Worker& a,
                       const WorkerRegistry::Worker& b) {
  return proto::DescribeDifference(a.hello.fingerprint(),
                                   b.hello.fingerprint());
}

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
  worker.hello = hello;
  worker.draining = false;
  worker.reports = 0;
  // In the operator's order, whoever comes first.
  const auto place = std::find_if(
      snapshot_.workers.begin(), snapshot_.workers.end(),
      [&](const WorkerSnapshot& w) { return IndexOf(w.id) > index; });
  snapshot_.workers.insert(place, Idle(worker.id, worker.role, hello));
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

void WorkerRegistry::Reported(int index, const v1::LoadReport& load) {
  Worker& worker = workers_[index];
  WorkerSnapshot* snapshot = Find(worker.id);
  if (snapshot == nullptr) return;
  ++worker.reports;
  snapshot->running = Clamped(load.running());
  snapshot->waiting = Clamped(load.waiting());
  snapshot->free_blocks = Clamped(load.free_blocks());
  snapshot->queued_tokens = Clamped(load.queued_tokens());
  snapshot->placed_sequences = 0;
  snapshot->placed_blocks = 0;
  snapshot->placed_tokens = 0;
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
    ever_paired_ = ever_paired_ || state.paired;
  }
  Refresh(now);
}

void WorkerRegistry::Draining(WorkerId id) {
  const int index = IndexOf(id);
  if (index < 0 || workers_[index].draining) return;
  LOG(INFO) << "worker " << Describe(index) << " is draining";
  workers_[index].draining = true;
  Refresh(start_);
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

absl::Time WorkerRegistry::NextDue() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& [key, state] : pairs_) {
    if (!state.paired) next = std::min(next, state.due);
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
    std::string state = "is not paired";
    if (worker.id == kNoWorker) {
      state = "is not connected";
    } else if (!worker.misfit.empty()) {
      state = absl::StrCat("does not fit: ", worker.misfit);
    } else if (worker.draining) {
      state = "is draining";
    }
    reasons.push_back(absl::StrCat(Describe(static_cast<int>(i)), " ", state));
  }
  return absl::StrCat(
      "no ", scheduling::WorkerRoleName(missing), " worker can serve: ",
      reasons.empty() ? "none was named" : absl::StrJoin(reasons, "; "));
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

void WorkerRegistry::UpdateMisfits(int changed) {
  std::vector<std::string> misfits(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].known) misfits[i] = DescribeMisfit(static_cast<int>(i));
  }
  ExcludeMinorities(&misfits);
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (!misfits[i].empty() && misfits[i] != worker.misfit) {
      LOG(ERROR) << "worker " << Describe(static_cast<int>(i))
                 << " does not fit and gets no requests: " << misfits[i];
    }
    worker.misfit = std::move(misfits[i]);
  }
  // Each pair is named, also when both workers fit others.
  const Worker& joined = workers_[changed];
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& other = workers_[i];
    if (!other.known || other.role == joined.role) continue;
    const std::string difference = Difference(joined, other);
    if (difference.empty()) continue;
    LOG(ERROR) << Describe(changed) << " (here) and "
               << Describe(static_cast<int>(i))
               << " (there) are never paired: " << difference;
  }
}

void WorkerRegistry::ExcludeMinorities(
    std::vector<std::string>* misfits) const {
  const auto fits = [&](size_t i) {
    return workers_[i].known && (*misfits)[i].empty();
  };
  const auto same = [&](size_t i, size_t j) {
    return Difference(workers_[i], workers_[j]).empty();
  };
  size_t best = 0;
  int best_size = 0;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!fits(i)) continue;
    int size = 0;
    for (size_t j = 0; j < workers_.size(); ++j) {
      if (fits(j) && same(i, j)) ++size;
    }
    if (size > best_size) {
      best = i;
      best_size = size;
    }
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!fits(i) || same(i, best)) continue;
    (*misfits)[i] =
        absl::StrCat(Difference(workers_[i], workers_[best]),
                     ", where there is ", Describe(static_cast<int>(best)),
                     ", one of ", best_size, " that serve");
  }
}

std::string WorkerRegistry::DescribeMisfit(int index) const {
  const Worker& worker = workers_[index];
  std::string misfit = MisfitWithModel(worker);
  if (!misfit.empty()) return misfit;
  // A worker that differs from all of the other kind can have no partner, and
  // must not serve alone either: it would give other answers.
  std::vector<std::string> differences;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& other = workers_[i];
    if (!other.known || other.role == worker.role ||
        !MisfitWithModel(other).empty()) {
      continue;
    }
    const std::string difference = Difference(worker, other);
    if (difference.empty()) return "";
    differences.push_back(absl::StrCat(difference, ", where there is ",
                                       Describe(static_cast<int>(i))));
  }
  return absl::StrJoin(differences, "; ");
}

std::string WorkerRegistry::MisfitWithModel(const Worker& worker) const {
  const v1::ModelFingerprint& theirs = worker.hello.fingerprint();
  std::vector<std::string> differences;
  if (worker.hello.role() != ToWire(worker.role)) {
    differences.push_back(absl::StrCat(
        "it says that its role is ", v1::WorkerRole_Name(worker.hello.role()),
        ", it was named as ", v1::WorkerRole_Name(ToWire(worker.role))));
  }
  if (theirs.architecture() != model_.architecture) {
    differences.push_back(absl::StrCat("architecture (", theirs.architecture(),
                                       " there, ", model_.architecture,
                                       " at the router)"));
  }
  const auto compare = [&](const char* field, uint32_t there, int32_t here) {
    if (there == static_cast<uint32_t>(here)) return;
    differences.push_back(
        absl::StrCat(field, " (", there, " there, ", here, " at the router)"));
  };
  compare("vocab_size", theirs.vocab_size(), model_.vocab_size);
  compare("num_layers", theirs.num_layers(), model_.num_layers);
  if (theirs.block_size() == 0) differences.push_back("block_size is 0");
  return absl::StrJoin(differences, "; ");
}

void WorkerRegistry::Refresh(absl::Time now) {
  RefreshPairs(now);
  bool prefill_named = false;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    prefill_named = prefill_named || worker.role == WorkerRole::kPrefill;
    WorkerSnapshot* snapshot = Find(worker.id);
    if (snapshot == nullptr) continue;
    snapshot->usable = Usable(worker);
    snapshot->paired_with.clear();
  }
  for (const auto& [key, state] : pairs_) {
    if (!state.paired) continue;
    Find(workers_[key.first].id)
        ->paired_with.push_back(workers_[key.second].id);
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
        pairs_[key] = {.due = now, .backoff = options_.min_pair_retry};
      }
    }
  }
}

}  // namespace baton::router
