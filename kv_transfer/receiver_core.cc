#include "kv_transfer/receiver_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/log_fields.h"
#include "common/status_macros.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/wire_encoding.h"

namespace baton::kv_transfer {
namespace {

// Within which a sender that was lost may connect again, before transfers of
// which nothing has come are given up.
constexpr absl::Duration kComeBack = absl::Seconds(2);

}  // namespace

HandoffReceiver::Core::Core(Transport* transport, HandoffOptions options,
                            RegionId region)
    : transport_(transport),
      options_(std::move(options)),
      region_(region),
      block_size_(ShapeOf(options_.self).block_size),
      pairing_(transport, &options_, v1::WORKER_ROLE_PREFILL) {}

HandoffReceiver::Core::~Core() { transport_->Stop(); }

absl::Status HandoffReceiver::Core::SetUpProbes() {
  if (!options_.probe_links) return absl::OkStatus();
  absl::Span<std::byte> memory = options_.kv.spare;
  if (options_.kv.hasher == nullptr) {
    probe_memory_.resize(LinkProbe::kMaxPayloadBytes);
    memory = absl::MakeSpan(probe_memory_);
  }
  BATON_ASSIGN_OR_RETURN(probe_region_,
                         transport_->RegisterRegion(memory, kNoDescriptor));
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
  const int32_t num_tokens = open.num_tokens.value_or(
      static_cast<int32_t>(open.blocks.size()) * block_size_);
  auto [it, inserted] = transfers_.try_emplace(
      id, std::make_unique<Transfer>(options_.kv, block_size_, num_tokens,
                                     std::move(open)));
  CHECK(inserted) << "transfer " << static_cast<uint64_t>(id)
                  << " is open or quarantined";
  return absl::OkStatus();
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

std::vector<TransferId> HandoffReceiver::Core::NearEnd() const {
  absl::MutexLock lock(&mu_);
  std::vector<TransferId> near;
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer->pages.ended() && transfer->pages.nears_end()) {
      near.push_back(id);
    }
  }
  for (const Event& event : events_) {
    if (const auto* landed = std::get_if<Landed>(&event)) {
      near.push_back(landed->transfer);
    }
  }
  return near;
}

HandoffReceiver::Stats HandoffReceiver::Core::stats() const {
  absl::MutexLock lock(&mu_);
  Stats stats = totals_;
  stats.peers_ready = pairing_.num_ready();
  stats.peers_closed_by_force = pairing_.num_closed_by_force();
  for (const auto& [id, transfer] : transfers_) {
    const auto blocks = static_cast<int64_t>(transfer->pages.blocks().size());
    if (transfer->pages.ended()) {
      ++stats.transfers_quarantined;
      stats.blocks_quarantined += blocks;
    } else {
      ++stats.transfers_open;
      (transfer->first_byte.has_value() ? stats.blocks_filling
                                        : stats.blocks_granted) += blocks;
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
  if (const auto posts = posts_.find(peer); posts != posts_.end()) {
    posts->second.down = true;
    if (posts->second.count == 0) posts_.erase(posts);
  }
  std::vector<TransferId> torn;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->pages.ended()) continue;
    if (transfer->peer == peer) {
      torn.push_back(id);
    } else if (!transfer->peer.has_value() && lost.has_value() &&
               transfer->expected_sender == lost) {
      // Nothing of it has begun: the worker may connect again.
      transfer->awaited_since = options_.clock->Now();
    }
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

void HandoffReceiver::Core::OnTick() {
  if (transport_->AllTicked() && options_.ticked) options_.ticked();
  Section section(this);
  const absl::Time now = options_.clock->Now();
  pairing_.Tick(now);
  CloseStalledPeers(now);
  std::vector<TransferId> due;
  std::vector<TransferId> away;
  std::vector<TransferId> unwanted;
  for (const auto& [id, transfer] : transfers_) {
    if (now >= transfer->deadline) {
      due.push_back(id);
    } else if (StaysAway(*transfer, now)) {
      away.push_back(id);
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
  for (TransferId id : away) {
    Fail(id, *transfers_.at(id), TransferOutcome::kPeerLost,
         "its sender was lost, and did not connect again");
  }
  for (TransferId id : unwanted) {
    Transfer& transfer = *transfers_.at(id);
    TellSender(id, transfer, TransferOutcome::kLeaseExpired);
    Fail(id, transfer, TransferOutcome::kLeaseExpired,
         "the router that wanted it is silent");
  }
}

bool HandoffReceiver::Core::StaysAway(Transfer& transfer, absl::Time now) {
  if (!transfer.awaited_since.has_value() || transfer.pages.ended()) {
    return false;
  }
  if (transfer.peer.has_value() ||
      pairing_.FindReady(*transfer.expected_sender).has_value()) {
    transfer.awaited_since.reset();
    return false;
  }
  return now >= *transfer.awaited_since + kComeBack;
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

bool HandoffReceiver::Core::Bind(PeerId peer, TransferId id, Transfer& transfer,
                                 WireEncoding encoding) {
  if ((encoding == WireEncoding::kExact ||
       (options_.kv.bf16 && options_.kv.hasher == nullptr)) &&
      transfer.pages.Bind(pairing_.MapOf(peer), encoding)) {
    return true;
  }
  TellSender(id, transfer, TransferOutcome::kOutOfRange);
  Fail(id, transfer, TransferOutcome::kOutOfRange,
       absl::StrCat("the sender sends ", WireEncodingName(encoding),
                    ", which is not what it began with, or not for this "
                    "cache"));
  return false;
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
  if (!Bind(peer, commit.transfer, *transfer, commit.encoding)) return;
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
                      commit.num_pages, " pages, ", commit.total_bytes,
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
  const PageMap& map = *transfer.pages.map();
  events_.push_back(
      Landed{id, generation, transfer.pages.record(), transfer.sender,
             map.first_head(), map.num_heads(), transfer.pages.total_bytes(),
             transfer.pages.encoding(), now,
             now - transfer.first_byte.value_or(now), TransportOf(transfer)});
  transfers_.erase(id);
}

void HandoffReceiver::Core::End(TransferId id, Transfer& transfer) {
  transfer.pages.End();
  transfer.deadline = options_.clock->Now() + options_.quarantine_timeout;
  QuiesceIfQuiet(id);
}

void HandoffReceiver::Core::Fail(TransferId id, Transfer& transfer,
                                 TransferOutcome outcome, std::string detail) {
  LogEvent(google::GLOG_WARNING, "kv_transfer: incoming transfer failed",
           LogFields()
               .Text("transfer", absl::StrCat(static_cast<uint64_t>(id)))
               .Text("request", transfer.owner.request)
               .Text("trace", transfer.owner.trace_id)
               .Text("outcome", TransferOutcomeName(outcome))
               .Text("error", detail));
  ++totals_.transfers_failed;
  events_.push_back(Failed{id, transfer.pages.generation(), outcome,
                           std::move(detail), TransportOf(transfer)});
  End(id, transfer);
}

std::string HandoffReceiver::Core::TransportOf(const Transfer& transfer) const {
  return transfer.peer.has_value()
             ? transport_->PeerProperties(*transfer.peer).name
             : transport_->properties().name;
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
