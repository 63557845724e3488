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

void HandoffSender::Core::StartProbe(PeerId peer) {
  const uint64_t bytes = std::min<uint64_t>(
      {LinkProbe::kMaxPayloadBytes, transport_->properties().max_payload_bytes,
       options_.kv.memory.size()});
  const auto [it, inserted] =
      probes_.try_emplace(peer, bytes, options_.clock->Now());
  if (inserted) SendProbes(peer, it->second.Start());
}

void HandoffSender::Core::SendProbes(PeerId peer, const LinkProbe::Step& step) {
  if (!step.send) return;
  const wire::Probe probe{static_cast<uint64_t>(peer), step.sequence};
  if (step.payload_bytes == 0) {
    pairing_.Send(peer, probe);
    return;
  }
  if (!pairing_.IsReady(peer)) return;
  const std::string header = pairing_.EncodeFor(peer, probe);
  const Extent payload{region_, 0, step.payload_bytes};
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
  const auto it = probes_.find(peer);
  if (it == probes_.end() || reply.probe != static_cast<uint64_t>(peer)) return;
  SendProbes(peer, it->second.OnReply(reply.sequence, options_.clock->Now()));
  if (!it->second.result().has_value()) return;
  bandwidths_[peer] = it->second.result()->bytes_per_second;
  events_.push_back(LinkMeasured{
      peer, pairing_.IncarnationOf(peer), pairing_.NameOf(peer),
      transport_->PeerProperties(peer).name, *it->second.result()});
  probes_.erase(it);
}

}  // namespace baton::kv_transfer
