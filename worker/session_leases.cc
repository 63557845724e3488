#include "worker/session_leases.h"

#include <algorithm>

namespace baton::worker {
namespace {

constexpr absl::Duration kDefaultLease = absl::Seconds(5);
constexpr absl::Duration kMinLease = absl::Seconds(1);
constexpr absl::Duration kMaxLease = absl::Minutes(10);

}  // namespace

void SessionLeases::Open(SessionId session, uint32_t lease_ms) {
  const absl::Duration length =
      lease_ms == 0
          ? kDefaultLease
          : std::clamp(absl::Milliseconds(lease_ms), kMinLease, kMaxLease);
  absl::MutexLock lock(&mu_);
  leases_[session] = {length, clock_->Now() + length};
}

void SessionLeases::Renew(SessionId session) {
  absl::MutexLock lock(&mu_);
  const auto it = leases_.find(session);
  if (it != leases_.end()) it->second.until = clock_->Now() + it->second.length;
}

void SessionLeases::Close(SessionId session) {
  absl::MutexLock lock(&mu_);
  leases_.erase(session);
}

absl::Time SessionLeases::Until(SessionId session) const {
  absl::MutexLock lock(&mu_);
  const auto it = leases_.find(session);
  return it == leases_.end() ? absl::InfinitePast() : it->second.until;
}

}  // namespace baton::worker
