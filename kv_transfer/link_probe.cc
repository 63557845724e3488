#include "kv_transfer/link_probe.h"

#include <algorithm>

namespace baton::kv_transfer {

LinkProbe::LinkProbe(uint64_t payload_bytes, absl::Time now)
    : payload_bytes_(payload_bytes), started_(now), sent_(now) {}

LinkProbe::Step LinkProbe::OnReply(uint32_t sequence, absl::Time now) {
  if (result_.has_value()) return {};
  if (next_ < kPings) {
    if (sequence != next_) return {};
    shortest_ = std::min(shortest_, now - sent_);
    sent_ = now;
    ++next_;
    if (next_ < kPings) return {.first = next_, .count = 1};
    return {.first = kPings, .count = kBursts, .with_payload = true};
  }
  if (sequence < kPings || sequence >= kPings + kBursts) return {};
  if (++payloads_answered_ < kBursts) return {};
  const double seconds = std::max(absl::ToDoubleSeconds(now - sent_), 1e-9);
  result_ = LinkSpeed{shortest_ / 2, kBursts * payload_bytes_ / seconds};
  return {};
}

}  // namespace baton::kv_transfer
