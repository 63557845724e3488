#include "scheduling/failure_detector.h"

#include <algorithm>

namespace baton::scheduling {
namespace {

// What reached this machine while the observer did not run is read within this.
constexpr absl::Duration kCatchUp = absl::Milliseconds(250);

}  // namespace

bool FailureDetector::Connected(uint64_t incarnation, absl::Time now) {
  const bool mistaken = taken_for_lost_ && incarnation == incarnation_;
  if (mistaken) {
    patience_ = std::min(2 * patience(now), options_.max_patience);
    mistaken_at_ = now;
  }
  taken_for_lost_ = false;
  incarnation_ = incarnation;
  heard_at_ = now;
  return mistaken;
}

void FailureDetector::Disconnected(bool silent) {
  taken_for_lost_ = silent;
  heard_at_ = absl::InfiniteFuture();
}

void FailureDetector::Stalled(absl::Duration by, absl::Time now) {
  if (heard_at_ == absl::InfiniteFuture()) return;
  const absl::Time not_before = now + kCatchUp - options_.interval - patience(now);
  heard_at_ = std::min(now, std::max(heard_at_ + by, not_before));
}

absl::Duration FailureDetector::patience(absl::Time now) const {
  absl::Duration patience = patience_;
  for (absl::Time at = mistaken_at_ + options_.calm;
       at <= now && patience > options_.patience; at += options_.calm) {
    patience /= 2;
  }
  return std::max(patience, options_.patience);
}

}  // namespace baton::scheduling
