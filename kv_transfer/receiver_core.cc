#include "kv_transfer/receiver_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/page_extents.h"

namespace baton::kv_transfer {

class ABSL_SCOPED_LOCKABLE HandoffReceiver::Core::Section final {
 public:
  explicit Section(Core* core) ABSL_EXCLUSIVE_LOCK_FUNCTION(core->mu_)
      : core_(core) {
    core_->mu_.Lock();
    was_empty_ = core_->events_.empty();
  }
  ~Section() ABSL_UNLOCK_FUNCTION() {
    for (Pairing::Event& event : core_->pairing_.TakeEvents()) {
      std::visit([&](auto& e) { core_->events_.push_back(std::move(e)); },
                 event);
    }
    const bool wake = was_empty_ && !core_->events_.empty();
    core_->mu_.Unlock();
    if (wake && core_->options_.wake) core_->options_.wake();
  }
  Section(const Section&) = delete;
  Section& operator=(const Section&) = delete;

 private:
  Core* const core_;
  bool was_empty_;
};

HandoffReceiver::Core::Core(Transport* transport, HandoffOptions options,
                            RegionId region)
    : transport_(transport),
      options_(std::move(options)),
      region_(region),
      pairing_(transport, &options_, v1::WORKER_ROLE_PREFILL) {}

HandoffReceiver::Core::~Core() { transport_->Stop(); }

absl::Status HandoffReceiver::Core::SetUpProbes() {
  if (!options_.probe_links) return absl::OkStatus();
  probe_memory_.resize(LinkProbe::kMaxPayloadBytes);
  BATON_ASSIGN_OR_RETURN(
      probe_region_,
      transport_->RegisterRegion(absl::MakeSpan(probe_memory_), kNoDescriptor));
  return absl::OkStatus();
}

absl::Status HandoffReceiver::Core::Open(OpenTransfer open) {
  Section section(this);
  if (transfers_.size() >= options_.max_transfers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_transfers (", options_.max_transfers, ") are open"));
  }
  if (events_.size() >= options_.max_waiting_events) {
    return absl::ResourceExhaustedError("max_waiting_events were not polled");
  }
  const TransferId id = open.transfer;
  auto [it, inserted] = transfers_.try_emplace(
      id, std::make_unique<Transfer>(options_.kv, std::move(open)));
  CHECK(inserted) << "transfer " << static_cast<uint64_t>(id)
                  << " is open or quarantined";
  return absl::OkStatus();
}

void HandoffReceiver::Core::Extend(TransferId id, absl::Time deadline) {
  absl::MutexLock lock(&mu_);
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second->pages.ended()) return;
  it->second->deadline = deadline;
}

void HandoffReceiver::Core::Abort(TransferId id, TransferOutcome reason) {
  CHECK(reason != TransferOutcome::kOk);
  Section section(this);
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second->pages.ended()) return;
  TellSender(id, *it->second, reason);
  End(id, *it->second);
}

std::vector<HandoffReceiver::Event> HandoffReceiver::Core::Poll() {
  absl::MutexLock lock(&mu_);
  return std::exchange(events_, {});
}

HandoffReceiver::Stats HandoffReceiver::Core::stats() const {
  absl::MutexLock lock(&mu_);
  Stats stats = totals_;
  stats.peers_ready = pairing_.num_ready();
  stats.peers_closed_by_force = pairing_.num_closed_by_force();
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->pages.ended()) {
      ++stats.transfers_quarantined;
      stats.blocks_quarantined += transfer->pages.blocks().size();
    } else {
      ++stats.transfers_open;
    }
  }
  return stats;
}

void HandoffReceiver::Core::OnPeerUp(PeerId peer, const std::string& address) {
  Section section(this);
  pairing_.OnUp(peer, address);
  if (events_.size() >= options_.max_waiting_events) {
    pairing_.Distrust(peer, "max_waiting_events were not polled");
  }
}

void HandoffReceiver::Core::OnPeerDown(PeerId peer, const absl::Status& why) {
  Section section(this);
  const std::optional<Incarnation> lost = pairing_.OnDown(peer, why);
  // A worker that connected again already is not lost.
  const bool life_over = lost.has_value() && !pairing_.FindReady(*lost);
  std::vector<TransferId> torn;
  for (const auto& [id, transfer] : transfers_) {
    const bool bound = transfer->peer == peer;
    const bool awaited = !transfer->peer.has_value() && life_over &&
                         transfer->expected_sender == lost;
    if (!transfer->pages.ended() && (bound || awaited)) torn.push_back(id);
  }
  for (TransferId id : torn) {
    Fail(id, *transfers_.at(id), TransferOutcome::kPeerLost,
         std::string(why.message()));
  }
}

void HandoffReceiver::Core::OnMessage(PeerId peer, ByteSpan header) {
  absl::StatusOr<wire::Message> message = wire::Decode(header);
  Section section(this);
  if (!message.ok()) {
    pairing_.Distrust(peer, std::string(message.status().message()));
    return;
  }
  if (std::holds_alternative<v1::PeerHello>(message->body)) {
    pairing_.OnHello(peer, *message);
    return;
  }
  if (!pairing_.Authorize(peer, *message)) {
    ++totals_.messages_dropped;
    return;
  }
  if (auto* commit = std::get_if<wire::Commit>(&message->body)) {
    OnCommit(peer, *commit);
  } else if (auto* abort = std::get_if<wire::Abort>(&message->body)) {
    OnAbort(peer, *abort);
  } else if (auto* probe = std::get_if<wire::Probe>(&message->body)) {
    pairing_.Send(peer, wire::ProbeReply{probe->probe, probe->sequence});
  } else if (!std::holds_alternative<wire::AbortAck>(message->body)) {
    pairing_.Distrust(peer, "sent a message that is not for a receiver");
  }
}

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
      landing = AcceptProbe(*probe, payload_bytes);
    } else {
      pairing_.Distrust(peer, "sent a payload with a message that has none");
    }
  }
  if (!landing.has_value()) ++totals_.messages_dropped;
  return landing;
}

void HandoffReceiver::Core::OnLanding(PeerId peer, uint64_t cookie,
                                      uint64_t bytes) {
  PostedReceive posted;
  absl::Span<const BlockId> blocks;
  {
    absl::MutexLock lock(&mu_);
    auto it = posted_.find(cookie);
    if (it == posted_.end()) return;  // a probe
    posted = it->second;
    const Transfer* transfer = OwnerOf(posted);
    if (transfer == nullptr) return;
    blocks = transfer->pages.blocks();
  }
  const auto landed = static_cast<uint32_t>(bytes / options_.kv.page_bytes);
  if (landed <= posted.num_hashed) return;
  const uint64_t checksum = HashPages(posted, blocks, landed);
  absl::MutexLock lock(&mu_);
  PostedReceive& now = posted_.at(cookie);
  now.checksum += checksum;
  now.num_hashed = landed;
}

uint64_t HandoffReceiver::Core::HashPages(const PostedReceive& posted,
                                          absl::Span<const BlockId> blocks,
                                          uint32_t end) const {
  const uint32_t first = posted.pages.first_index + posted.num_hashed;
  return PagesChecksum(options_.kv, posted.pages.layer, first,
                       blocks.subspan(first, end - posted.num_hashed));
}

void HandoffReceiver::Core::OnLanded(PeerId peer, uint64_t cookie,
                                     const absl::Status& status) {
  PostedReceive posted;
  absl::Span<const BlockId> blocks;
  {
    Section section(this);
    if (auto probe = posted_probes_.extract(cookie)) {
      const wire::Probe& p = probe.mapped();
      if (status.ok()) {
        pairing_.Send(peer, wire::ProbeReply{p.probe, p.sequence});
      }
      return;
    }
    auto it = posted_.find(cookie);
    CHECK(it != posted_.end()) << "landing " << cookie << " completed twice";
    posted = it->second;
    posted_.erase(it);
    // Not erased while it has landings, and its blocks never change.
    const Transfer* transfer = OwnerOf(posted);
    if (transfer == nullptr) return;
    blocks = transfer->pages.blocks();
  }
  const wire::Kv& kv = posted.pages;
  uint64_t checksum = 0;
  if (status.ok()) {
    checksum = posted.checksum + HashPages(posted, blocks, kv.num_blocks);
  }
  Section section(this);
  Transfer* const owner = OwnerOf(posted);
  if (owner == nullptr) return;
  Transfer& transfer = *owner;
  if (status.ok()) {
    transfer.pages.FinishClaim(kv, checksum);
    totals_.bytes_received += kv.num_blocks * options_.kv.page_bytes;
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

void HandoffReceiver::Core::OnTick() {
  Section section(this);
  const absl::Time now = options_.clock->Now();
  totals_.last_tick = now;
  pairing_.Tick(now);
  std::vector<TransferId> due;
  std::vector<TransferId> unwanted;
  for (const auto& [id, transfer] : transfers_) {
    if (now >= transfer->deadline) {
      due.push_back(id);
    } else if (!transfer->pages.ended() &&
               LeaseExpired(options_, transfer->holder, now)) {
      unwanted.push_back(id);
    }
  }
  for (TransferId id : due) {
    Transfer& transfer = *transfers_.at(id);
    if (!transfer.pages.ended()) {
      TellSender(id, transfer, TransferOutcome::kDeadlineExceeded);
      Fail(id, transfer, TransferOutcome::kDeadlineExceeded,
           "no complete commit before the deadline");
    } else {
      // Still quarantined, so a peer has receives outstanding.
      transfer.deadline = absl::InfiniteFuture();
      pairing_.Distrust(*transfer.peer, "an ended transfer is not quiet");
    }
  }
  for (TransferId id : unwanted) {
    Transfer& transfer = *transfers_.at(id);
    TellSender(id, transfer, TransferOutcome::kLeaseExpired);
    Fail(id, transfer, TransferOutcome::kLeaseExpired,
         "the router that wanted it is silent");
  }
}

HandoffReceiver::Core::Transfer* HandoffReceiver::Core::OwnerOf(
    const PostedReceive& posted) {
  auto it = transfers_.find(posted.transfer);
  if (it != transfers_.end() &&
      it->second->pages.generation() == posted.generation) {
    return it->second.get();
  }
  CHECK(options_.removed_fence != Fence::kNone);
  return nullptr;
}

HandoffReceiver::Core::Transfer* HandoffReceiver::Core::Claim(
    PeerId peer, TransferId id, uint32_t generation, TransferOutcome* why_not) {
  auto it = transfers_.find(id);
  const bool open = it != transfers_.end() && !it->second->pages.ended();
  if (!open || (it->second->pages.generation() != generation &&
                options_.removed_fence != Fence::kGeneration)) {
    *why_not = TransferOutcome::kUnknownTransfer;
    return nullptr;
  }
  Transfer& transfer = *it->second;
  const Incarnation sender = pairing_.IncarnationOf(peer);
  if (transfer.peer.value_or(peer) != peer ||
      transfer.expected_sender.value_or(sender) != sender) {
    *why_not = TransferOutcome::kWrongPeer;
    return nullptr;
  }
  transfer.peer = peer;
  transfer.sender = sender;
  return &transfer;
}

std::optional<Landing> HandoffReceiver::Core::AcceptProbe(
    const wire::Probe& probe, uint64_t payload_bytes) {
  if (!probe_region_.has_value() || payload_bytes > probe_memory_.size()) {
    return std::nullopt;
  }
  const uint64_t cookie = next_cookie_++;
  posted_probes_[cookie] = probe;
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
  const TransportProperties& limits = transport_->properties();
  IncomingTransfer::Claim claim = IncomingTransfer::Claim::kOutOfRange;
  if (kv.num_blocks <= limits.max_payload_extents) {
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
           absl::StrCat("the sender sent layer ", kv.layer, ", blocks ",
                        kv.first_index, "+", kv.num_blocks, ", ", payload_bytes,
                        " bytes"));
      return std::nullopt;
  }
  if (!transfer->first_byte.has_value()) {
    transfer->first_byte = options_.clock->Now();
  }
  const uint64_t cookie = next_cookie_++;
  posted_[cookie] = {kv.transfer, transfer->pages.generation(), kv};
  const absl::Span<const BlockId> blocks = transfer->pages.blocks();
  return Landing{PageExtents(options_.kv, region_, kv.layer,
                             blocks.subspan(kv.first_index, kv.num_blocks)),
                 cookie};
}

void HandoffReceiver::Core::OnCommit(PeerId peer, const wire::Commit& commit) {
  TransferOutcome outcome = TransferOutcome::kOk;
  Transfer* transfer =
      Claim(peer, commit.transfer, commit.generation, &outcome);
  if (transfer == nullptr) {
    ++totals_.messages_dropped;
    pairing_.Send(peer,
                  wire::CommitAck{commit.transfer, commit.generation, outcome});
    return;
  }
  outcome = transfer->pages.TakeCommit(commit);
  const int64_t vocab_size = options_.self.fingerprint().vocab_size();
  const TokenId token = commit.record.first_token;
  if (token < 0 || (vocab_size > 0 && token >= vocab_size)) {
    outcome = TransferOutcome::kOutOfRange;
  }
  if (outcome != TransferOutcome::kOk) {
    pairing_.Send(peer,
                  wire::CommitAck{commit.transfer, commit.generation, outcome});
    Fail(commit.transfer, *transfer, outcome,
         absl::StrCat("the commit says ", commit.num_layers, " layers, ",
                      commit.num_blocks, " blocks, ", commit.total_bytes,
                      " bytes, first token ", token));
    return;
  }
  FinishIfComplete(commit.transfer, *transfer);
}

void HandoffReceiver::Core::OnAbort(PeerId peer, const wire::Abort& abort) {
  TransferOutcome why_not = TransferOutcome::kOk;
  Transfer* transfer = Claim(peer, abort.transfer, abort.generation, &why_not);
  pairing_.Send(peer, wire::AbortAck{abort.transfer, abort.generation});
  if (transfer == nullptr) {
    ++totals_.messages_dropped;
    return;
  }
  Fail(abort.transfer, *transfer, abort.reason, "the sender gave up");
}

void HandoffReceiver::Core::FinishIfComplete(TransferId id,
                                             Transfer& transfer) {
  const bool believed = options_.removed_fence == Fence::kCommitCheck &&
                        transfer.pages.has_commit();
  if (!believed && !transfer.pages.Complete()) return;
  const TransferOutcome outcome =
      believed ? TransferOutcome::kOk : transfer.pages.Verify();
  const uint32_t generation = transfer.pages.generation();
  pairing_.Send(*transfer.peer, wire::CommitAck{id, generation, outcome});
  if (outcome != TransferOutcome::kOk) {
    Fail(id, transfer, outcome, "KV arrived altered");
    return;
  }
  CHECK(believed || transfer.pages.num_landings() == 0);
  const absl::Time now = options_.clock->Now();
  ++totals_.transfers_landed;
  events_.push_back(Landed{id, generation, transfer.pages.record(),
                           transfer.sender, transfer.pages.total_bytes(),
                           now - transfer.first_byte.value_or(now)});
  transfers_.erase(id);
}

void HandoffReceiver::Core::End(TransferId id, Transfer& transfer) {
  transfer.pages.End();
  transfer.deadline = options_.clock->Now() + options_.quarantine_timeout;
  QuiesceIfQuiet(id);
}

void HandoffReceiver::Core::Fail(TransferId id, Transfer& transfer,
                                 TransferOutcome outcome, std::string detail) {
  LOG(WARNING) << "kv_transfer: incoming transfer " << static_cast<uint64_t>(id)
               << " failed (" << TransferOutcomeName(outcome)
               << "): " << detail;
  ++totals_.transfers_failed;
  events_.push_back(
      Failed{id, transfer.pages.generation(), outcome, std::move(detail)});
  End(id, transfer);
}

void HandoffReceiver::Core::TellSender(TransferId id, const Transfer& transfer,
                                       TransferOutcome reason) {
  std::optional<PeerId> peer = transfer.peer;
  if (!peer.has_value() && transfer.expected_sender.has_value()) {
    peer = pairing_.FindReady(*transfer.expected_sender);
  }
  if (!peer.has_value()) return;
  pairing_.Send(*peer, wire::Abort{id, transfer.pages.generation(), reason});
}

void HandoffReceiver::Core::QuiesceIfQuiet(TransferId id) {
  auto it = transfers_.find(id);
  if (it->second->pages.num_landings() > 0 &&
      options_.removed_fence != Fence::kQuarantine) {
    return;
  }
  events_.push_back(Quiesced{id, it->second->pages.generation()});
  transfers_.erase(it);
}

}  // namespace baton::kv_transfer
