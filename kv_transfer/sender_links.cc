// HandoffSender: what the links to its peers are worth, and whether they live.
#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/sender_core.h"

namespace baton::kv_transfer {

void HandoffSender::Core::Progressed(PeerId peer) {
  const auto it = waiting_since_.find(peer);
  if (it != waiting_since_.end()) it->second = options_.clock->Now();
}

void HandoffSender::Core::CloseStalledPeers(absl::Time now) {
  if (options_.stall_timeout == absl::InfiniteDuration()) return;
  std::set<PeerId> owing;
  for (const auto& [cookie, send] : on_wire_) owing.insert(send.peer);
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->pages.commit_sent() && !transfer->pages.ended()) {
      owing.insert(transfer->peer);
    }
  }
  std::erase_if(waiting_since_, [&](const auto& entry) {
    return !owing.contains(entry.first);
  });
  for (PeerId peer : owing) {
    const absl::Time since =
        waiting_since_.try_emplace(peer, now).first->second;
    const bool connects =
        options_.kv.hasher != nullptr && !reached_.contains(peer);
    const absl::Duration patience =
        (connects ? kFirstPayloadPatience : 1) * options_.stall_timeout;
    if (now < since + patience) continue;
    pairing_.Distrust(peer, absl::StrCat("nothing came back for ",
                                         absl::FormatDuration(patience)));
  }
}

void HandoffSender::Core::MeasureLink(PeerId peer) {
  const uint64_t bytes = std::min<uint64_t>(
      {LinkProbe::kMaxPayloadBytes, transport_->properties().max_payload_bytes,
       options_.kv.memory.size()});
  const absl::Time now = options_.clock->Now();
  const auto [it, inserted] = meters_.try_emplace(peer, bytes, now);
  if (inserted) SendProbe(peer, it->second.Start(now));
}

void HandoffSender::Core::MeasureLinksAgain(absl::Time now) {
  bool one_is_measured = false;
  for (auto& [peer, meter] : meters_) one_is_measured |= meter.Measures(now);
  if (one_is_measured) return;
  for (auto& [peer, meter] : meters_) {
    if (!meter.Due(now) || !pairing_.IsReady(peer)) continue;
    const bool carries_kv =
        std::any_of(on_wire_.begin(), on_wire_.end(),
                    [to = peer](const auto& e) { return e.second.peer == to; });
    if (carries_kv) continue;
    SendProbe(peer, meter.Start(now));
    return;
  }
}

void HandoffSender::Core::SendProbe(PeerId peer, const LinkMeter::Send& probe) {
  if (probe.payload_bytes == 0) {
    pairing_.Send(peer, probe.message);
    return;
  }
  if (!pairing_.IsReady(peer)) return;
  const std::string header = pairing_.EncodeFor(peer, probe.message);
  const Extent payload{region_, 0, probe.payload_bytes};
  // What is not sent is not answered: the probe ends without a result.
  transport_
      ->Send(peer,
             ByteSpan(reinterpret_cast<const std::byte*>(header.data()),
                      header.size()),
             {payload}, kProbeCookie)
      .IgnoreError();
}

void HandoffSender::Core::OnProbeReply(PeerId peer,
                                       const wire::ProbeReply& reply) {
  const auto it = meters_.find(peer);
  if (it == meters_.end()) return;
  LinkMeter& meter = it->second;
  const auto next = meter.OnReply(reply, options_.clock->Now());
  if (next.has_value()) {
    SendProbe(peer, *next);
    return;
  }
  if (const std::optional<LinkSpeed> news = meter.TakeNews()) {
    events_.push_back(
        LinkMeasured{peer, pairing_.IncarnationOf(peer), pairing_.NameOf(peer),
                     transport_->PeerProperties(peer).name, *news});
  }
}

}  // namespace baton::kv_transfer
