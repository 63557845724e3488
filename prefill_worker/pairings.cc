#include "prefill_worker/pairings.h"

#include <algorithm>

#include "common/log.h"

namespace baton::prefill_worker {
namespace {

constexpr int kMaxTries = 8;
constexpr absl::Duration kFirstPause = absl::Milliseconds(250);
// Far more than there are decode workers in a cluster.
constexpr size_t kMaxWishes = 4096;

}  // namespace

void Pairings::Add(worker::SessionId session, const v1::Pair& pair,
                   absl::Time now) {
  Wish wish;
  wish.session = session;
  wish.decode = Incarnation{pair.decode_incarnation()};
  wish.address = pair.data_address();
  // A decode worker that restarted at the same address: its old life is over.
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
    wish.ready = true;
    Report(wish, true, "");
  } else {
    Try(&wish, now);
  }
  wishes_.push_back(wish);
}

void Pairings::OnReady(const kv_transfer::PeerReady& ready) {
  for (Wish& wish : wishes_) {
    if (wish.address != ready.address) continue;
    if (wish.decode == ready.incarnation) {
      wish.ready = true;
      wish.next_try = absl::InfiniteFuture();
      Report(wish, true, "");
    } else {
      Report(wish, false, "another life of the worker answers there");
    }
  }
}

void Pairings::OnRefused(const kv_transfer::PeerRefused& refused,
                         absl::Time now) {
  for (Wish& wish : wishes_) {
    if (wish.address != refused.address) continue;
    Report(wish, false, refused.reason);
    ScheduleRetry(&wish, now);
  }
}

void Pairings::OnLost(const kv_transfer::PeerLost& lost, absl::Time now) {
  for (Wish& wish : wishes_) {
    if (wish.decode != lost.incarnation) continue;
    wish.ready = false;
    wish.tries = 0;
    Report(wish, false, lost.reason);
    ScheduleRetry(&wish, now);
  }
}

void Pairings::OnSessionGone(worker::SessionId session) {
  const auto gone = [session](const Wish& w) { return w.session == session; };
  wishes_.erase(std::remove_if(wishes_.begin(), wishes_.end(), gone),
                wishes_.end());
}

void Pairings::Retry(absl::Time now) {
  for (Wish& wish : wishes_) {
    if (now >= wish.next_try) Try(&wish, now);
  }
}

void Pairings::Try(Wish* wish, absl::Time now) {
  ++wish->tries;
  wish->next_try = absl::InfiniteFuture();
  const absl::Status status = sender_->Pair(wish->address);
  if (status.ok()) return;
  LOG(WARNING) << "cannot pair with " << wish->address << ": " << status;
  Report(*wish, false, std::string(status.message()));
  ScheduleRetry(wish, now);
}

void Pairings::ScheduleRetry(Wish* wish, absl::Time now) {
  wish->next_try = wish->tries < kMaxTries
                       ? now + kFirstPause * (1 << wish->tries)
                       : absl::InfiniteFuture();
}

void Pairings::Report(const Wish& wish, bool paired,
                      const std::string& reason) {
  v1::PairReport report;
  report.set_decode_incarnation(static_cast<uint64_t>(wish.decode));
  report.set_paired(paired);
  report.set_reason(reason);
  publisher_->AddPairReport(wish.session, std::move(report));
}

}  // namespace baton::prefill_worker
