#include "prefill_worker/pairings.h"

#include <algorithm>

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
  wishes_.push_back(wish);
  if (sender_->IsReady(wish.decode)) {
    Report(wish, true, "");
    return;
  }
  const absl::Status status = sender_->Pair(wish.address);
  if (!status.ok()) Report(wish, false, std::string(status.message()));
}

void Pairings::OnReady(const kv_transfer::PeerReady& ready) {
  for (const Wish& wish : wishes_) {
    if (wish.address != ready.address) continue;
    const bool same_life = wish.decode == ready.incarnation;
    Report(wish, same_life,
           same_life ? "" : "another life of the worker answers there");
  }
}

void Pairings::OnRefused(const kv_transfer::PeerRefused& refused) {
  for (const Wish& wish : wishes_) {
    if (wish.address == refused.address) Report(wish, false, refused.reason);
  }
}

void Pairings::OnMeasured(const kv_transfer::LinkMeasured& measured) {
  links_[measured.incarnation] = measured;
  for (const Wish& wish : wishes_) {
    if (wish.decode == measured.incarnation) Report(wish, true, "");
  }
}

void Pairings::OnLost(const kv_transfer::PeerLost& lost) {
  links_.erase(lost.incarnation);
  for (const Wish& wish : wishes_) {
    if (wish.decode == lost.incarnation) Report(wish, false, lost.reason);
  }
}

void Pairings::OnSessionGone(worker::SessionId session) {
  const auto gone = [session](const Wish& w) { return w.session == session; };
  wishes_.erase(std::remove_if(wishes_.begin(), wishes_.end(), gone),
                wishes_.end());
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
