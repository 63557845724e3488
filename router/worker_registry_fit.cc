// WorkerRegistry: who fits whom.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/adapter_name.h"
#include "common/log.h"
#include "proto/fingerprint.h"
#include "router/worker_messages.h"
#include "router/worker_registry.h"
#include "router/worker_snapshot.h"

namespace baton::router {
namespace {

// More tokens in a block make no sense.
constexpr uint32_t kMaxBlockSize = 1 << 16;

}  // namespace

std::string WorkerRegistry::Difference(const Worker& a, const Worker& b) {
  if (a.fingerprint == b.fingerprint) return "";
  return proto::DescribeDifference(a.hello.fingerprint(),
                                   b.hello.fingerprint());
}

std::string WorkerRegistry::DifferenceAmongServing(const Worker& a,
                                                   const Worker& b) const {
  std::string difference = Difference(a, b);
  if (!options_.mixed_backends && a.hello.backend() != b.hello.backend()) {
    absl::StrAppend(&difference, difference.empty() ? "" : "; ", "backend (",
                    a.hello.backend(), " here, ", b.hello.backend(), " there)");
  }
  // An answer that goes on with one that does not would be kept to nothing.
  if (a.hello.takes_grammars() != b.hello.takes_grammars()) {
    const auto takes = [](const Worker& worker) {
      return worker.hello.takes_grammars() ? "are taken" : "are not taken";
    };
    absl::StrAppend(&difference, difference.empty() ? "" : "; ", "grammars (",
                    takes(a), " here, ", takes(b), " there)");
  }
  return difference;
}

void WorkerRegistry::UpdateBackends() {
  std::map<std::string, std::vector<std::string>> workers;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    if (worker.id == scheduling::kNoWorker || !worker.misfit.empty() ||
        worker.hello.backend().empty()) {
      continue;
    }
    workers[worker.hello.backend()].push_back(Describe(static_cast<int>(i)));
  }
  std::vector<std::string> backends;
  std::vector<std::string> lines;
  for (const auto& [backend, names] : workers) {
    backends.push_back(backend);
    lines.push_back(absl::StrCat(
        backend, " (", names.front(),
        names.size() == 1 ? ""
                          : absl::StrCat(" and ", names.size() - 1, " more"),
        ")"));
  }
  const bool more = !std::includes(backends_.begin(), backends_.end(),
                                   backends.begin(), backends.end());
  backends_ = std::move(backends);
  LOG_IF(WARNING, more && backends_.size() > 1)
      << "workers do not compute to the same bits: "
      << absl::StrJoin(lines, ", ")
      << ". An answer may depend on which of them give it, and one that is "
         "placed again go on with other words (--mixed-backends exclude)";
}

void WorkerRegistry::UpdateAdapters() {
  // [name][identity]: how many decode workers have it.
  std::map<std::string, std::map<std::string, int>> found;
  for (const Worker& worker : workers_) {
    if (worker.id == scheduling::kNoWorker || !worker.misfit.empty() ||
        worker.role != scheduling::WorkerRole::kDecode) {
      continue;
    }
    for (const v1::Adapter& adapter : worker.hello.adapters()) {
      if (!IsAdapterName(adapter.name()) || adapter.identity().empty() ||
          adapter.identity().size() > kMaxAdapterIdentityBytes) {
        continue;
      }
      ++found[adapter.name()][adapter.identity()];
    }
  }
  AdapterNames names;
  std::set<std::string> disputed;
  for (const auto& [name, counts] : found) {
    const auto most = std::max_element(
        counts.begin(), counts.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    names.emplace(name, most->first);
    if (counts.size() > 1) disputed.insert(name);
  }
  for (const std::string& name : disputed) {
    LOG_IF(WARNING, disputed_.count(name) == 0)
        << "workers have " << found[name].size() << " adapters named " << name
        << ": requests go to those that have the one that most have";
  }
  disputed_ = std::move(disputed);
  if (names != *adapters_) {
    adapters_ = std::make_shared<AdapterNames>(std::move(names));
  }
}

void WorkerRegistry::AdaptersChanged(int index, const v1::AdapterNews& news) {
  Worker& worker = workers_[index];
  if (worker.id == scheduling::kNoWorker) return;
  const auto alike = [](const v1::Adapter& a, const v1::Adapter& b) {
    return a.name() == b.name() && a.identity() == b.identity();
  };
  const bool same =
      std::equal(worker.hello.adapters().begin(), worker.hello.adapters().end(),
                 news.adapters().begin(), news.adapters().end(), alike);
  *worker.hello.mutable_adapters() = news.adapters();
  TakeAdapters(worker.hello, Find(worker.id));
  UpdateAdapters();
  LOG_IF(INFO, !same) << "worker " << Describe(index) << " has "
                      << news.adapters_size()
                      << (news.adapters_size() == 1 ? " adapter" : " adapters")
                      << " now";
}

std::vector<int> WorkerRegistry::UpdateMisfits(int changed) {
  std::vector<std::string> misfits(workers_.size());
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i].known) misfits[i] = DescribeMisfit(static_cast<int>(i));
  }
  ExcludeMinorities(&misfits);
  std::vector<int> others;
  for (size_t i = 0; i < workers_.size(); ++i) {
    Worker& worker = workers_[i];
    if (misfits[i] == worker.misfit) continue;
    LOG_IF(ERROR, !misfits[i].empty())
        << "worker " << Describe(static_cast<int>(i))
        << " does not fit and gets no requests: " << misfits[i];
    worker.misfit = std::move(misfits[i]);
    others.push_back(static_cast<int>(i));
  }
  UpdateBackends();
  UpdateAdapters();
  // Each pair is named, also when both workers fit others.
  const Worker& joined = workers_[changed];
  if (!joined.known) return others;  // it has left
  for (size_t i = 0; i < workers_.size(); ++i) {
    const Worker& other = workers_[i];
    if (!other.known || other.role == joined.role) continue;
    const std::string difference = Difference(joined, other);
    if (difference.empty()) continue;
    LOG(ERROR) << Describe(changed) << " (here) and "
               << Describe(static_cast<int>(i))
               << " (there) are never paired: " << difference;
  }
  return others;
}

void WorkerRegistry::ExcludeMinorities(
    std::vector<std::string>* misfits) const {
  const auto fits = [&](size_t i) {
    return workers_[i].known && (*misfits)[i].empty();
  };
  const auto same = [&](size_t i, size_t j) {
    return DifferenceAmongServing(workers_[i], workers_[j]).empty();
  };
  size_t best = 0;
  int best_size = 0;
  bool best_serves = false;
  std::set<absl::string_view> counted;
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!fits(i) || !counted.insert(workers_[i].fingerprint).second) continue;
    int size = 0;
    bool prefills = options_.local_prefill;
    bool decodes = false;
    for (size_t j = 0; j < workers_.size(); ++j) {
      if (!fits(j) || !same(i, j)) continue;
      ++size;
      (workers_[j].role == scheduling::WorkerRole::kDecode ? decodes
                                                           : prefills) = true;
    }
    // Before all, one that can: where backends count, one may have workers of
    // one kind alone.
    const bool serves = prefills && decodes;
    if (serves > best_serves || (serves == best_serves && size > best_size)) {
      best = i;
      best_size = size;
      best_serves = serves;
    }
  }
  for (size_t i = 0; i < workers_.size(); ++i) {
    if (!fits(i) || same(i, best)) continue;
    (*misfits)[i] =
        absl::StrCat(DifferenceAmongServing(workers_[i], workers_[best]),
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
  if (theirs.block_size() > kMaxBlockSize) {
    differences.push_back(
        absl::StrCat("block_size is more than ", kMaxBlockSize));
  }
  return absl::StrJoin(differences, "; ");
}

}  // namespace baton::router
