#include "kv_transfer/link_probe.h"

#include <algorithm>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

// In bytes per second. No link is faster, nor is memory.
constexpr double kFastest = 1e12;

}  // namespace

void LinkProbe::Samples::Add(absl::Duration took) {
  ++count;
  shortest = std::min(shortest, took);
}

LinkProbe::LinkProbe(uint64_t max_payload_bytes, absl::Time now)
    : max_payload_bytes_(max_payload_bytes), started_(now), sent_(now) {
  CHECK_GT(max_payload_bytes, 0u);
  // Less where payloads must be small, so that there are larger ones.
  smallest_.bytes =
      std::clamp<uint64_t>(max_payload_bytes / kGrowth, 1, kSmallestBytes);
  larger_.bytes = std::min(kGrowth * smallest_.bytes, max_payload_bytes);
}

LinkProbe::Step LinkProbe::Send(uint64_t payload_bytes, absl::Time now) {
  sent_ = now;
  return {
      .send = true, .sequence = ++sequence_, .payload_bytes = payload_bytes};
}

bool LinkProbe::TookLongEnough() const {
  const absl::Duration more = larger_.shortest - smallest_.shortest;
  return more >= kLongEnough && more >= smallest_.shortest / 4;
}

LinkProbe::Step LinkProbe::OnReply(uint32_t sequence, absl::Time now) {
  if (result_.has_value() || sequence != sequence_) return {};
  const absl::Duration took = now - sent_;
  if (pings_.count < kPings) {
    pings_.Add(took);
    return Send(pings_.count < kPings ? 0 : smallest_.bytes, now);
  }
  if (smallest_.count < kSamples) {
    smallest_.Add(took);
    return Send(smallest_.count < kSamples ? smallest_.bytes : larger_.bytes,
                now);
  }
  larger_.Add(took);
  if (larger_.bytes < max_payload_bytes_ && !TookLongEnough()) {
    larger_ = {.bytes = std::min(kGrowth * larger_.bytes, max_payload_bytes_)};
    return Send(larger_.bytes, now);
  }
  if (larger_.count < kSamples) return Send(larger_.bytes, now);
  double seconds = absl::ToDoubleSeconds(larger_.shortest - smallest_.shortest);
  const auto bytes = static_cast<double>(
      std::max<uint64_t>(larger_.bytes - smallest_.bytes, 1));
  if (bytes > kFastest * seconds) {
    // Something else held up the smallest ones.
    seconds = std::max(absl::ToDoubleSeconds(larger_.shortest), 1e-9);
  }
  result_ = LinkSpeed{pings_.shortest / 2, bytes / seconds};
  return {};
}

}  // namespace baton::kv_transfer
