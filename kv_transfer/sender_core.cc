#include "kv_transfer/sender_core.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/log_fields.h"
#include "kv_transfer/page_map.h"

namespace baton::kv_transfer {

HandoffSender::Core::Core(Transport* transport, HandoffOptions options,
                          RegionId region)
    : transport_(transport),
      options_(std::move(options)),
      region_(region),
      block_size_(ShapeOf(options_.self).block_size),
      pairing_(transport, &options_, v1::WORKER_ROLE_DECODE) {}

HandoffSender::Core::~Core() { transport_->Stop(); }

absl::Status HandoffSender::Core::Pair(const std::string& address) {
  Section section(this);
  if (events_.size() >= options_.max_waiting_events) {
    return absl::ResourceExhaustedError("max_waiting_events were not polled");
  }
  return pairing_.Pair(address);
}

bool HandoffSender::Core::IsReady(Incarnation receiver) const {
  absl::MutexLock lock(&mu_);
  return pairing_.FindReady(receiver).has_value();
}

absl::Status HandoffSender::Core::Start(const Grant& grant,
                                        absl::Span<const BlockId> blocks,
                                        absl::Time deadline) {
  Section section(this);
  if (transfers_.size() >= options_.max_transfers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("max_transfers (", options_.max_transfers, ") are open"));
  }
  if (events_.size() >= options_.max_waiting_events) {
    return absl::ResourceExhaustedError("max_waiting_events were not polled");
  }
  const int64_t room =
      int64_t{block_size_} * static_cast<int64_t>(blocks.size());
  if (grant.first_token < 0 || grant.num_tokens < 0 ||
      int64_t{grant.first_token} + grant.num_tokens > room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grant: first_token ", grant.first_token, " and num_tokens ",
        grant.num_tokens, " do not fit a sequence of ", blocks.size(),
        " blocks of ", block_size_, " tokens"));
  }
  const std::optional<PeerId> peer = pairing_.FindReady(grant.receiver);
  if (!peer.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("grant: decode_incarnation ",
                     absl::Hex(static_cast<uint64_t>(grant.receiver)),
                     " is not paired with this worker"));
  }
  if (transfers_.contains(grant.transfer)) {
    return absl::AlreadyExistsError(
        absl::StrCat("grant: transfer_id ",
                     static_cast<uint64_t>(grant.transfer), " is in use"));
  }
  const std::shared_ptr<const PageMap>& map = pairing_.MapOf(*peer);
  if (grant.first_token % map->wire_block_size() != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "grant: first_token ", grant.first_token, " is not where a block of ",
        map->wire_block_size(), " tokens begins"));
  }
  const WireEncoding encoding = ChooseEncoding(*peer);
  uint32_t max_pages =
      map->MaxPagesPerMessage(transport_->PeerProperties(*peer));
  if (encoding != WireEncoding::kExact) {
    ++totals_.transfers_encoded;
    max_pages = std::min(max_pages, MaxStagedPages(*map, encoding));
  }
  transfers_[grant.transfer] = std::make_unique<Transfer>(
      options_.kv, map, encoding, grant,
      std::vector<BlockId>(blocks.begin(), blocks.end()), *peer, max_pages,
      deadline);
  return absl::OkStatus();
}

void HandoffSender::Core::SendLayer(TransferId id, int32_t layer,
                                    int32_t blocks_ready) {
  {
    absl::MutexLock lock(&mu_);
    Transfer* transfer = FindLive(id);
    if (transfer == nullptr) return;
    const int64_t tokens = int64_t{blocks_ready} * block_size_;
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (!transfer->pages.PassOn(
            layer, static_cast<int32_t>(std::min(tokens, kMost)))) {
      return;
    }
    if (!transfer->first_pages.has_value()) {
      transfer->first_pages = options_.clock->Now();
    }
    AddWork(id, *transfer);
  }
  transport_->Wake();
}

void HandoffSender::Core::Commit(TransferId id, const CommitRecord& record,
                                 absl::Time computed_at) {
  {
    absl::MutexLock lock(&mu_);
    Transfer* transfer = FindLive(id);
    if (transfer == nullptr) return;
    transfer->pages.Commit(record);
    transfer->computed_at = std::min(options_.clock->Now(), computed_at);
    AddWork(id, *transfer);
  }
  transport_->Wake();
}

void HandoffSender::Core::Abort(TransferId id, TransferOutcome reason) {
  CHECK(reason != TransferOutcome::kOk);
  Section section(this);
  Transfer* transfer = FindLive(id);
  if (transfer == nullptr) return;
  TellReceiver(id, *transfer, reason);
  End(id, *transfer);
}

std::vector<HandoffSender::Event> HandoffSender::Core::Poll() {
  absl::MutexLock lock(&mu_);
  return std::exchange(events_, {});
}

HandoffSender::Stats HandoffSender::Core::stats() const {
  absl::MutexLock lock(&mu_);
  Stats stats = totals_;
  stats.peers_ready = pairing_.num_ready();
  stats.peers_closed_by_force = pairing_.num_closed_by_force();
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->pages.ended()) {
      ++stats.transfers_quarantined;
    } else {
      ++stats.transfers_open;
    }
  }
  return stats;
}

HandoffSender::Core::Transfer* HandoffSender::Core::FindLive(TransferId id) {
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second->pages.ended()) return nullptr;
  return it->second.get();
}

void HandoffSender::Core::AddWork(TransferId id, Transfer& transfer) {
  if (transfer.has_work) return;
  transfer.has_work = true;
  work_.push_back(id);
}

void HandoffSender::Core::End(TransferId id, Transfer& transfer) {
  transfer.pages.End();
  transfer.deadline = options_.clock->Now() + options_.quarantine_timeout;
  QuiesceIfQuiet(id);
}

void HandoffSender::Core::Fail(TransferId id, Transfer& transfer,
                               TransferOutcome outcome, std::string detail) {
  LogEvent(google::GLOG_WARNING, "kv_transfer: outgoing transfer failed",
           LogFields()
               .Text("transfer", absl::StrCat(static_cast<uint64_t>(id)))
               .Text("request", transfer.owner.request)
               .Text("trace", transfer.owner.trace_id)
               .Text("outcome", TransferOutcomeName(outcome))
               .Text("error", detail));
  ++totals_.transfers_failed;
  events_.push_back(Failed{id, transfer.pages.generation(), outcome,
                           std::move(detail),
                           transport_->PeerProperties(transfer.peer).name});
  End(id, transfer);
}

void HandoffSender::Core::TellReceiver(TransferId id, const Transfer& transfer,
                                       TransferOutcome reason) {
  pairing_.Send(transfer.peer,
                wire::Abort{id, transfer.pages.generation(), reason});
}

void HandoffSender::Core::QuiesceIfQuiet(TransferId id) {
  auto it = transfers_.find(id);
  const Transfer& transfer = *it->second;
  if (transfer.pages.num_sends() > 0) return;
  const uint32_t generation = transfer.pages.generation();
  if (transfer.owes_abort_ack) {
    pairing_.Send(transfer.peer, wire::AbortAck{id, generation});
  }
  events_.push_back(Quiesced{id, generation});
  transfers_.erase(it);
}

// What the transport reports, on the progress thread.

void HandoffSender::Core::OnPeerUp(PeerId peer, const std::string& address) {
  Section section(this);
  pairing_.OnUp(peer, address);
}

void HandoffSender::Core::OnPeerDown(PeerId peer, const absl::Status& why) {
  Section section(this);
  pairing_.OnDown(peer, why);
  meters_.erase(peer);
  reached_.erase(peer);
  std::vector<TransferId> torn;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer->peer == peer && !transfer->pages.ended()) torn.push_back(id);
  }
  for (TransferId id : torn) {
    Fail(id, *transfers_.at(id), TransferOutcome::kPeerLost,
         std::string(why.message()));
  }
}

void HandoffSender::Core::OnMessage(PeerId peer, ByteSpan header) {
  absl::StatusOr<wire::Message> message = wire::Decode(header);
  Section section(this);
  if (!message.ok()) {
    pairing_.Distrust(peer, std::string(message.status().message()));
    return;
  }
  if (std::holds_alternative<v1::PeerHelloReply>(message->body)) {
    pairing_.OnHelloReply(peer, *message);
    if (options_.probe_links && pairing_.IsReady(peer)) MeasureLink(peer);
    return;
  }
  if (!pairing_.Authorize(peer, *message)) {
    ++totals_.messages_dropped;
    return;
  }
  Progressed(peer);
  if (auto* ack = std::get_if<wire::CommitAck>(&message->body)) {
    OnCommitAck(peer, *ack);
  } else if (auto* abort = std::get_if<wire::Abort>(&message->body)) {
    OnAbort(peer, *abort);
  } else if (auto* reply = std::get_if<wire::ProbeReply>(&message->body)) {
    OnProbeReply(peer, *reply);
  } else if (!std::holds_alternative<wire::AbortAck>(message->body)) {
    pairing_.Distrust(peer, "sent a message that is not for a sender");
  }
}

std::optional<Landing> HandoffSender::Core::OnPayload(PeerId peer, ByteSpan,
                                                      uint64_t) {
  Section section(this);
  ++totals_.messages_dropped;
  pairing_.Distrust(peer, "sent a payload to a sender");
  return std::nullopt;
}

void HandoffSender::Core::OnSent(PeerId peer, uint64_t cookie,
                                 const absl::Status& status) {
  if (cookie == kControlCookie) return;
  if (status.ok() && options_.kv.hasher != nullptr) {
    Section section(this);
    reached_.insert(peer);
  }
  if (cookie == kProbeCookie) return;
  {
    Section section(this);
    auto it = on_wire_.find(cookie);
    CHECK(it != on_wire_.end()) << "send " << cookie << " completed twice";
    const PageSend send = std::move(it->second);
    on_wire_.erase(it);
    if (status.ok()) Progressed(send.peer);
    Transfer* transfer = FindLive(send.transfer);
    if (transfer != nullptr && !status.ok()) {
      TellReceiver(send.transfer, *transfer, TransferOutcome::kTransportFailed);
      Fail(send.transfer, *transfer, TransferOutcome::kTransportFailed,
           std::string(status.message()));
    }
    EndSend(send, status.ok());
  }
  Pump();
}

void HandoffSender::Core::OnTick() {
  if (transport_->AllTicked() && options_.ticked) options_.ticked();
  {
    Section section(this);
    const absl::Time now = options_.clock->Now();
    pairing_.Tick(now);
    CloseStalledPeers(now);
    MeasureLinksAgain(now);
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
        TellReceiver(id, transfer, TransferOutcome::kDeadlineExceeded);
        Fail(id, transfer, TransferOutcome::kDeadlineExceeded,
             "not acknowledged before the deadline");
      } else {
        transfer.deadline = absl::InfiniteFuture();
        pairing_.Distrust(transfer.peer, "an ended transfer is not quiet");
      }
    }
    for (TransferId id : unwanted) {
      Transfer& transfer = *transfers_.at(id);
      TellReceiver(id, transfer, TransferOutcome::kLeaseExpired);
      Fail(id, transfer, TransferOutcome::kLeaseExpired,
           "the router that wanted it is silent");
    }
  }
  Pump();
}

HandoffSender::Core::Transfer* HandoffSender::Core::Match(PeerId peer,
                                                          TransferId id,
                                                          uint32_t generation) {
  auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second->peer != peer ||
      it->second->pages.generation() != generation) {
    return nullptr;
  }
  return it->second.get();
}

void HandoffSender::Core::OnCommitAck(PeerId peer, const wire::CommitAck& ack) {
  Transfer* transfer = Match(peer, ack.transfer, ack.generation);
  if (transfer == nullptr || transfer->pages.ended() ||
      !transfer->pages.commit_sent()) {
    ++totals_.messages_dropped;
    return;
  }
  if (ack.outcome != TransferOutcome::kOk) {
    Fail(ack.transfer, *transfer, ack.outcome,
         "the receiver did not take the commit");
    return;
  }
  const absl::Time now = options_.clock->Now();
  const absl::Time computed_at = transfer->computed_at;
  ++totals_.transfers_acked;
  events_.push_back(Acked{
      ack.transfer, ack.generation, transfer->pages.total_bytes(),
      now - transfer->first_pages.value_or(computed_at), now - computed_at,
      transfer->extents, transport_->PeerProperties(peer).name});
  End(ack.transfer, *transfer);
}

void HandoffSender::Core::OnAbort(PeerId peer, const wire::Abort& abort) {
  Transfer* transfer = Match(peer, abort.transfer, abort.generation);
  if (transfer == nullptr) {
    ++totals_.messages_dropped;
    pairing_.Send(peer, wire::AbortAck{abort.transfer, abort.generation});
    return;
  }
  // Once the commit is out, the answer to it decides: a page that came twice
  // may have found the transfer landed and gone.
  if (transfer->pages.commit_sent() &&
      abort.reason == TransferOutcome::kUnknownTransfer) {
    ++totals_.messages_dropped;
    return;
  }
  transfer->owes_abort_ack = true;
  if (transfer->pages.ended()) return;
  Fail(abort.transfer, *transfer, abort.reason, "the receiver gave up");
}

}  // namespace baton::kv_transfer
