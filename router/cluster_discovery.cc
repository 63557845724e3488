// Cluster: workers that are looked up in DNS come and go.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "router/cluster.h"

namespace baton::router {

using scheduling::kNoWorker;
using scheduling::WorkerRole;

namespace {

// Look-ups in a row that do not have a worker any more, before it gets no
// requests: answers of name servers flicker.
constexpr int kMissesToWithdraw = 3;

// Of both kinds, named or found. More is not a cluster but a mistake.
constexpr size_t kMaxWorkers = 10'000;

// What a look-up came to, in metrics.
constexpr char kFound[] = "found";
constexpr char kNone[] = "none";
constexpr char kFailed[] = "failed";

}  // namespace

void Cluster::AddSource(WorkerRole role, const std::string& target) {
  absl::StatusOr<DnsTarget> parsed = ParseDnsTarget(target);
  CHECK(parsed.ok()) << parsed.status();
  sources_.push_back({.role = role, .target = *std::move(parsed)});
  registry_.SetSource(role, target, "was not looked up yet");
  // What may never happen is 0 from the start.
  for (const char* result : {kFound, kNone, kFailed}) {
    metrics_->LookedUp(result, /*times=*/0);
  }
}

std::vector<DnsTarget> Cluster::Sources() const {
  std::vector<DnsTarget> targets;
  for (const Source& source : sources_) targets.push_back(source.target);
  return targets;
}

void Cluster::TakeFound(const FoundWorkers& found, absl::Time now) {
  Source& source = sources_[found.source];
  const absl::Status& status = found.addresses.status();
  const bool none = absl::IsNotFound(status);
  metrics_->LookedUp(status.ok() ? kFound : none ? kNone : kFailed);
  const std::string failure(status.message());
  if (failure != source.failure) {
    LOG_IF(WARNING, !failure.empty())
        << "looking up " << source.target.text << ": " << failure
        << "; the workers of before stay";
    LOG_IF(INFO, failure.empty())
        << source.target.text << " can be looked up again";
    source.failure = failure;
  }
  registry_.SetSource(source.role, source.target.text, failure);
  if (!status.ok() && !none) return;
  bool changed = false;
  if (status.ok()) {
    source.listed.clear();
    source.listed.insert(found.addresses->begin(), found.addresses->end());
    changed = TakeListed(found.source, now);
  }
  changed |= TakeUnlisted(found.source, /*any_listed=*/status.ok(), now);
  if (changed) UpdateGauges(now);
}

bool Cluster::TakeListed(int source_index, absl::Time now) {
  Source& source = sources_[source_index];
  const auto known = PeersOf(source.role);
  auto num_workers = static_cast<size_t>(
      std::count_if(peers_.begin(), peers_.end(),
                    [](const Peer& peer) { return peer.link != nullptr; }));
  bool changed = false;
  for (const std::string& address : source.listed) {
    const auto it = known.find(address);
    if (it == known.end()) {
      if (num_workers >= kMaxWorkers) {
        LOG_IF(ERROR, !source.too_many)
            << source.target.text << " has " << address << " and more, but "
            << kMaxWorkers << " workers are the most; they are ignored";
        source.too_many = true;
        continue;
      }
      LOG(INFO) << source.target.text << " has a new "
                << scheduling::WorkerRoleName(source.role) << " worker at "
                << address;
      Add(source.role, address, source_index, now);
      ++num_workers;
      changed = true;
      continue;
    }
    const int index = it->second;
    Peer& peer = peers_[index];
    // The operator named it, too; or it leaves, and comes back when it has.
    if (peer.source < 0 || peer.leaving) continue;
    peer.source = source_index;
    peer.missed = 0;
    if (!registry_.workers()[index].withdrawn) continue;
    LOG(INFO) << source.target.text << " has " << registry_.Describe(index)
              << " again";
    registry_.SetWithdrawn(index, false, now);
    changed = true;
  }
  return changed;
}

bool Cluster::TakeUnlisted(int source, bool any_listed, absl::Time now) {
  bool changed = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int index = static_cast<int>(i);
    Peer& peer = peers_[index];
    if (peer.link == nullptr || peer.source != source || peer.leaving) continue;
    // A name without addresses has none of them, although what it listed last
    // is remembered.
    if (any_listed && Listed(index)) continue;
    ++peer.missed;
    // Nor does a name that somebody removed by mistake turn workers away.
    if (!any_listed || peer.missed < kMissesToWithdraw ||
        registry_.workers()[index].withdrawn) {
      continue;
    }
    LOG(INFO) << sources_[source].target.text << " does not have "
              << registry_.Describe(index)
              << " any more: it gets no new requests";
    registry_.SetWithdrawn(index, true, now);
    changed = true;
  }
  return changed;
}

void Cluster::DropUnlisted(absl::Time now) {
  if (sources_.empty()) return;
  for (size_t i = 0; i < peers_.size(); ++i) {
    const int index = static_cast<int>(i);
    Peer& peer = peers_[index];
    if (peer.link == nullptr || peer.leaving || peer.missed == 0) continue;
    const WorkerRegistry::Worker& worker = registry_.workers()[index];
    const bool down = worker.id == kNoWorker;
    if (!down && !(worker.withdrawn && registry_.Idle(index))) continue;
    if (peer.link->connected()) {
      // Its last event removes it.
      peer.leaving = peer.breaking = true;
      peer.link->Break();
    } else {
      LOG(INFO) << "forgetting worker " << registry_.Describe(index);
      Remove(index, now);
      UpdateGauges(now);
    }
  }
}

void Cluster::CountDiscovered() {
  if (sources_.empty()) return;
  for (const WorkerRole role : {WorkerRole::kPrefill, WorkerRole::kDecode}) {
    int count = 0;
    for (size_t i = 0; i < peers_.size(); ++i) {
      count += peers_[i].link != nullptr && peers_[i].source >= 0 &&
               registry_.workers()[i].role == role;
    }
    metrics_->SetDiscovered(role, count);
  }
}

void Cluster::Remove(int index, absl::Time now) {
  const WorkerRegistry::Worker& worker = registry_.workers()[index];
  metrics_->ForgetWorker(worker.role, worker.address);
  registry_.Remove(index, now);
  peers_[index] = Peer();
}

absl::flat_hash_map<std::string, int> Cluster::PeersOf(WorkerRole role) const {
  absl::flat_hash_map<std::string, int> peers;
  const std::vector<WorkerRegistry::Worker>& workers = registry_.workers();
  for (size_t i = 0; i < workers.size(); ++i) {
    if (workers[i].removed || workers[i].role != role) continue;
    peers.emplace(workers[i].address, static_cast<int>(i));
  }
  return peers;
}

bool Cluster::Listed(int index) const {
  const WorkerRegistry::Worker& worker = registry_.workers()[index];
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const Source& source) {
                       return source.role == worker.role &&
                              source.listed.contains(worker.address);
                     });
}

}  // namespace baton::router
