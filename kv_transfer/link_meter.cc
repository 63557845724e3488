#include "kv_transfer/link_meter.h"

#include <algorithm>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

bool FarApart(double a, double b) {
  return std::max(a, b) > LinkMeter::kNews * std::min(a, b);
}

}  // namespace

bool LinkMeter::Measures(absl::Time now) {
  if (probe_.has_value() && probe_->Late(now)) End(now);
  return probe_.has_value();
}

LinkMeter::Send LinkMeter::Start(absl::Time now) {
  CHECK(!probe_.has_value());
  ++num_started_;
  probe_.emplace(max_payload_bytes_, now);
  return *ToSend(probe_->Start());
}

std::optional<LinkMeter::Send> LinkMeter::OnReply(const wire::ProbeReply& reply,
                                                  absl::Time now) {
  if (!probe_.has_value() || reply.probe != num_started_) return std::nullopt;
  const LinkProbe::Step next = probe_->OnReply(reply.sequence, now);
  if (probe_->result().has_value()) {
    last_.push_back(*probe_->result());
    if (last_.size() > kRemembered) last_.pop_front();
    End(now);
  }
  return ToSend(next);
}

std::optional<LinkSpeed> LinkMeter::speed() const {
  if (last_.empty()) return std::nullopt;
  LinkSpeed best = last_.front();
  for (const LinkSpeed& speed : last_) {
    best.latency = std::min(best.latency, speed.latency);
    best.bytes_per_second =
        std::max(best.bytes_per_second, speed.bytes_per_second);
  }
  return best;
}

std::optional<LinkSpeed> LinkMeter::TakeNews() {
  const std::optional<LinkSpeed> now = speed();
  if (now.has_value() && told_.has_value() &&
      !FarApart(now->bytes_per_second, told_->bytes_per_second) &&
      !FarApart(absl::ToDoubleSeconds(now->latency),
                absl::ToDoubleSeconds(told_->latency))) {
    return std::nullopt;
  }
  told_ = now;
  return now;
}

std::optional<LinkMeter::Send> LinkMeter::ToSend(
    const LinkProbe::Step& step) const {
  if (!step.send) return std::nullopt;
  return Send{{num_started_, step.sequence}, step.payload_bytes};
}

void LinkMeter::End(absl::Time now) {
  probe_.reset();
  due_ = now + (num_started_ == 1   ? kSecond
                : num_started_ == 2 ? kThird
                                    : kEvery);
}

}  // namespace baton::kv_transfer
