#include "prefill_worker/pairings.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace baton::prefill_worker {
namespace {

// Far more than there are decode workers in a cluster.
constexpr size_t kMaxWishes = 4096;

}  // namespace

void Pairings::Add(worker::SessionId session, const v1::Pair& pair) {
  Wish wish;
  wish.session = session;
  wish.decode = Incarnation{pair.decode_incarnation()};
  wish.address = pair.data_address();
  // Asked again, or a decode worker that restarted at the same address.
  const auto same = [&](const Wish& other) {
    return other.session == session && other.address == wish.address;
  };
  wishes_.erase(std::remove_if(wishes_.begin(), wishes_.end(), same),
                wishes_.end());
  if (wishes_.size() >= kMaxWishes) {
    Report(wish, false, "too many pairs are asked for");
    return;
  }
  if (sender_->IsReady(wish.decode)) {
    Report(wish, true, "");
  } else if (const absl::Status status = sender_->Pair(wish.address);
             !status.ok()) {
    Report(wish, false, std::string(status.message()));
    return;
  }
  wishes_.push_back(std::move(wish));
}

void Pairings::OnReady(const kv_transfer::PeerReady& ready) {
  for (const Wish& wish : wishes_) {
    if (wish.address == ready.address && wish.decode == ready.incarnation) {
      Report(wish, true, "");
    }
  }
  Fail(
      [&](const Wish& wish) {
        return wish.address == ready.address &&
               wish.decode != ready.incarnation;
      },
      "another life of the worker answers there");
}

void Pairings::OnRefused(const kv_transfer::PeerRefused& refused) {
  Fail([&](const Wish& wish) { return wish.address == refused.address; },
       refused.reason);
}

void Pairings::OnMeasured(const kv_transfer::LinkMeasured& measured) {
  links_[measured.incarnation] = measured;
  metrics_->ObserveLink(measured.worker_name, measured.transport,
                        measured.speed.bytes_per_second,
                        absl::ToDoubleSeconds(measured.speed.latency));
  for (const Wish& wish : wishes_) {
    if (wish.decode == measured.incarnation) Report(wish, true, "");
  }
}

void Pairings::OnLost(const kv_transfer::PeerLost& lost) {
  if (const auto link = links_.extract(lost.incarnation)) {
    // Its next life may be there already, under the same name.
    const auto same = [&](const auto& other) {
      return other.second.worker_name == link.mapped().worker_name &&
             other.second.transport == link.mapped().transport;
    };
    if (std::none_of(links_.begin(), links_.end(), same)) {
      metrics_->ForgetLink(link.mapped().worker_name, link.mapped().transport);
    }
  }
  // By address, too: who asked for the worker's next life meanwhile was given
  // the connection that has just ended.
  Fail(
      [&](const Wish& wish) {
        return wish.decode == lost.incarnation || wish.address == lost.address;
      },
      lost.reason);
}

void Pairings::OnSessionGone(worker::SessionId session) {
  const auto gone = [session](const Wish& w) { return w.session == session; };
  wishes_.erase(std::remove_if(wishes_.begin(), wishes_.end(), gone),
                wishes_.end());
}

template <typename Predicate>
void Pairings::Fail(Predicate failed, const std::string& reason) {
  const auto gone = std::stable_partition(wishes_.begin(), wishes_.end(),
                                          std::not_fn(failed));
  for (auto wish = gone; wish != wishes_.end(); ++wish) {
    Report(*wish, false, reason);
  }
  wishes_.erase(gone, wishes_.end());
}

void Pairings::Report(const Wish& wish, bool paired,
                      const std::string& reason) {
  v1::PairReport report;
  report.set_decode_incarnation(static_cast<uint64_t>(wish.decode));
  report.set_paired(paired);
  report.set_reason(reason);
  if (const auto link = links_.find(wish.decode);
      paired && link != links_.end()) {
    report.set_transport(link->second.transport);
    report.set_bandwidth_bytes(link->second.speed.bytes_per_second);
    report.set_latency_seconds(
        absl::ToDoubleSeconds(link->second.speed.latency));
  }
  publisher_->AddPairReport(wish.session, std::move(report));
}

}  // namespace baton::prefill_worker
