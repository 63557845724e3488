// HandoffReceiver: payloads, from their announcement to their last byte.
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/extent_bytes.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/receiver_core.h"
#include "kv_transfer/wire_encoding.h"

namespace baton::kv_transfer {
std::optional<Landing> HandoffReceiver::Core::OnPayload(
    PeerId peer, ByteSpan header, uint64_t payload_bytes) {
  absl::StatusOr<wire::Message> message = wire::Decode(header);
  Section section(this);
  std::optional<Landing> landing;
  if (!message.ok()) {
    pairing_.Distrust(peer, std::string(message.status().message()));
  } else if (pairing_.Authorize(peer, *message)) {
    if (auto* kv = std::get_if<wire::Kv>(&message->body)) {
      landing = AcceptPayload(peer, *kv, payload_bytes);
    } else if (auto* probe = std::get_if<wire::Probe>(&message->body)) {
      landing = AcceptProbe(peer, *probe, payload_bytes);
    } else {
      pairing_.Distrust(peer, "sent a payload with a message that has none");
    }
  }
  if (!landing.has_value()) ++totals_.messages_dropped;
  return landing;
}

std::optional<Landing> HandoffReceiver::Core::AcceptProbe(
    PeerId peer, const wire::Probe& probe, uint64_t payload_bytes) {
  if (!probe_region_.has_value() ||
      payload_bytes > LinkProbe::kMaxPayloadBytes) {
    return std::nullopt;
  }
  const uint64_t cookie = next_cookie_++;
  posted_probes_[cookie] = probe;
  AddPost(peer);
  return Landing{{Extent{*probe_region_, 0, payload_bytes}}, cookie};
}

std::optional<Landing> HandoffReceiver::Core::AcceptPayload(
    PeerId peer, const wire::Kv& kv, uint64_t payload_bytes) {
  TransferOutcome why_not = TransferOutcome::kOk;
  Transfer* transfer = Claim(peer, kv.transfer, kv.generation, &why_not);
  if (transfer == nullptr) {
    // So that the sender need not wait for its deadline to learn it.
    pairing_.Send(peer, wire::Abort{kv.transfer, kv.generation, why_not});
    return std::nullopt;
  }
  if (!Bind(peer, kv.transfer, *transfer, kv.encoding)) return std::nullopt;
  const std::shared_ptr<const PageMap>& map = transfer->pages.map();
  IncomingTransfer::Claim claim = IncomingTransfer::Claim::kOutOfRange;
  if (uint64_t{kv.pages.num_pages} * map->max_extents() <=
      transport_->properties().max_payload_extents) {
    claim = transfer->pages.TryClaim(kv, payload_bytes);
  }
  switch (claim) {
    case IncomingTransfer::Claim::kClaimed:
      break;
    case IncomingTransfer::Claim::kDuplicate:
      return std::nullopt;
    case IncomingTransfer::Claim::kOutOfRange:
      TellSender(kv.transfer, *transfer, TransferOutcome::kOutOfRange);
      Fail(kv.transfer, *transfer, TransferOutcome::kOutOfRange,
           absl::StrCat("the sender sent layer ", kv.pages.layer, ", pages ",
                        kv.pages.first_page, "+", kv.pages.num_pages, ", ",
                        payload_bytes, " bytes"));
      return std::nullopt;
  }
  if (!transfer->first_byte.has_value()) {
    transfer->first_byte = options_.clock->Now();
  }
  const uint64_t cookie = next_cookie_++;
  AddPost(peer);
  std::vector<Extent> target =
      map->Extents(options_.kv, region_, kv.pages, /*first_token=*/0,
                   transfer->pages.blocks());
  Landing landing{FirstBytes(target, payload_bytes), cookie};
  posted_[cookie] = {
      kv.transfer,
      transfer->pages.generation(),
      kv,
      map,
      std::move(target),
      std::make_unique<PagesChecksum>(kv.pages.layer, kv.pages.first_page,
                                      EncodedPageBytes(*map, kv.encoding))};
  return landing;
}

void HandoffReceiver::Core::AddPost(PeerId peer) {
  if (options_.kv.hasher == nullptr) return;
  Posts& posts = posts_[peer];
  if (posts.count++ == 0) posts.since = options_.clock->Now();
}

void HandoffReceiver::Core::EndPost(PeerId peer, bool landed) {
  if (options_.kv.hasher == nullptr) return;
  Posts& posts = posts_.at(peer);
  posts.since = options_.clock->Now();
  posts.landed = posts.landed || landed;
  if (--posts.count == 0 && posts.down) posts_.erase(peer);
}

void HandoffReceiver::Core::CloseStalledPeers(absl::Time now) {
  if (options_.stall_timeout == absl::InfiniteDuration()) return;
  for (const auto& [peer, posts] : posts_) {
    const absl::Duration patience =
        (posts.landed ? 1 : kFirstPayloadPatience) * options_.stall_timeout;
    if (posts.count == 0 || now < posts.since + patience) continue;
    pairing_.Distrust(peer, absl::StrCat("nothing of what it sends came for ",
                                         absl::FormatDuration(patience)));
  }
}

void HandoffReceiver::Core::CopyLanding(PeerId peer, uint64_t cookie,
                                        ByteSpan from, absl::Span<std::byte> to,
                                        Stores stores) {
  PagesChecksum* checksum = nullptr;
  {
    absl::MutexLock lock(&mu_);
    auto it = posted_.find(cookie);
    if (it != posted_.end()) checksum = it->second.checksum.get();
  }
  if (checksum == nullptr) {  // a probe
    TransportHandler::CopyLanding(peer, cookie, from, to, stores);
    return;
  }
  // Gone only with OnLanded, which comes after this on the same thread.
  checksum->AddCopied(from, to, stores);
}

void HandoffReceiver::Core::OnLanded(PeerId peer, uint64_t cookie,
                                     const absl::Status& status) {
  PostedReceive posted;
  {
    Section section(this);
    EndPost(peer, status.ok());
    if (auto probe = posted_probes_.extract(cookie)) {
      const wire::Probe& p = probe.mapped();
      if (status.ok()) {
        pairing_.Send(peer, wire::ProbeReply{p.probe, p.sequence});
      }
      return;
    }
    auto it = posted_.find(cookie);
    CHECK(it != posted_.end()) << "landing " << cookie << " completed twice";
    posted = std::move(it->second);
    posted_.erase(it);
    // Until its claim has ended, the transfer keeps the pages.
    if (OwnerOf(posted) == nullptr) return;
  }
  const wire::Kv& kv = posted.message;
  const int64_t bytes =
      kv.pages.num_pages * EncodedPageBytes(*posted.map, kv.encoding);
  uint64_t checksum = 0;
  if (status.ok()) {
    if (!posted.checksum->begun()) {
      AddExtents(options_.kv,
                 FirstBytes(posted.target, static_cast<uint64_t>(bytes)),
                 posted.checksum.get());
    }
    checksum = posted.checksum->sum();
    if (kv.encoding != WireEncoding::kExact) Decode(posted);
  }
  Section section(this);
  Transfer* const owner = OwnerOf(posted);
  if (owner == nullptr) return;
  Transfer& transfer = *owner;
  if (status.ok()) {
    const bool layer_done = transfer.pages.FinishClaim(kv, checksum);
    if (layer_done && options_.report_layers && !transfer.pages.ended()) {
      events_.push_back(LayerLanded{posted.transfer, posted.generation,
                                    static_cast<int32_t>(kv.pages.layer)});
    }
    totals_.bytes_received += static_cast<uint64_t>(bytes);
  } else {
    transfer.pages.DropClaim();
  }
  if (transfer.pages.ended()) {
    QuiesceIfQuiet(posted.transfer);
  } else if (status.ok()) {
    FinishIfComplete(posted.transfer, transfer);
  } else {
    TellSender(posted.transfer, transfer, TransferOutcome::kTransportFailed);
    Fail(posted.transfer, transfer, TransferOutcome::kTransportFailed,
         std::string(status.message()));
  }
}

void HandoffReceiver::Core::Decode(const PostedReceive& posted) {
  const PageMap& map = *posted.map;
  const WireEncoding encoding = posted.message.encoding;
  std::vector<std::byte> encoded(EncodedPageBytes(map, encoding));
  std::vector<std::byte> page(map.page_bytes());
  // An encoded page is shorter than the page that it becomes. From the last one
  // on, what a page is written over is therefore decoded already, but for
  // itself.
  for (uint64_t i = posted.message.pages.num_pages; i-- > 0;) {
    ReadExtents(options_.kv.memory, posted.target, i * encoded.size(),
                absl::MakeSpan(encoded));
    DecodePage(map, encoding, encoded, absl::MakeSpan(page));
    WriteExtents(options_.kv.memory, posted.target, i * page.size(), page);
  }
}

}  // namespace baton::kv_transfer
