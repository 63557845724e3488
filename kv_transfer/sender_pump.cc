// HandoffSender: pages on their way to the transport, on its progress thread.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/extent_bytes.h"
#include "kv_transfer/sender_core.h"
#include "kv_transfer/wire_encoding.h"

namespace baton::kv_transfer {
namespace {

constexpr uint32_t kStagingSlots = 16;

}  // namespace

absl::Status HandoffSender::Core::SetUpStaging() {
  if (options_.wire.encoding == WireEncoding::kExact) return absl::OkStatus();
  // What fits a message before it is encoded fits a slot.
  staging_slot_bytes_ = std::max(transport_->properties().good_payload_bytes,
                                 static_cast<uint64_t>(options_.kv.page_bytes));
  staging_memory_.resize(kStagingSlots * staging_slot_bytes_);
  BATON_ASSIGN_OR_RETURN(staging_region_,
                         transport_->RegisterRegion(
                             absl::MakeSpan(staging_memory_), kNoDescriptor));
  absl::MutexLock lock(&mu_);
  for (uint32_t slot = 0; slot < kStagingSlots; ++slot) {
    free_slots_.push_back(slot);
  }
  return absl::OkStatus();
}

WireEncoding HandoffSender::Core::ChooseEncoding(PeerId peer) const {
  const auto meter = meters_.find(peer);
  if (meter == meters_.end()) return WireEncoding::kExact;
  const std::optional<LinkSpeed> speed = meter->second.speed();
  if (!speed.has_value() ||
      speed->bytes_per_second >= options_.wire.below_bytes_per_second ||
      transport_->PeerProperties(peer).shares_memory ||
      pairing_.TakesExactOnly(peer)) {
    return WireEncoding::kExact;
  }
  return options_.wire.encoding;
}

uint32_t HandoffSender::Core::MaxStagedPages(const PageMap& map,
                                             WireEncoding encoding) const {
  return static_cast<uint32_t>(
      staging_slot_bytes_ /
      static_cast<uint64_t>(EncodedPageBytes(map, encoding)));
}

void HandoffSender::Core::Pump() {
  for (;;) {
    std::optional<PageSend> send;
    {
      Section section(this);
      send = NextSend();
    }
    if (!send.has_value()) return;
    PagesChecksum checksum(send->run.layer, send->run.first_page,
                           EncodedPageBytes(*send->map, send->encoding));
    std::vector<Extent> payload;
    if (send->slot.has_value()) {
      const absl::Span<const std::byte> encoded = Encode(*send);
      checksum.Add(encoded);
      payload.push_back({*staging_region_, *send->slot * staging_slot_bytes_,
                         encoded.size()});
    } else if (transport_->PeerProperties(send->peer).shares_memory) {
      // The peer copies while we hash. Until it says that it is done, the
      // transfer keeps the pages, and nothing is heard of that meanwhile: calls
      // of the transport never overlap.
      const TransferId id = send->transfer;
      payload = send->source;
      {
        Section section(this);
        if (!Submit(*std::move(send), payload)) continue;
      }
      AddExtents(options_.kv, payload, &checksum);
      Section section(this);
      transfers_.at(id)->pages.AddChecksum(checksum.sum());
      continue;
    } else {
      AddExtents(options_.kv, send->source, &checksum);
      payload = send->source;
    }
    Section section(this);
    transfers_.at(send->transfer)->pages.AddChecksum(checksum.sum());
    Submit(*std::move(send), payload);
  }
}

absl::Span<const std::byte> HandoffSender::Core::Encode(const PageSend& send) {
  const auto page_bytes = static_cast<uint64_t>(send.map->page_bytes());
  const auto encoded_bytes =
      static_cast<uint64_t>(EncodedPageBytes(*send.map, send.encoding));
  const auto slot = absl::MakeSpan(staging_memory_)
                        .subspan(*send.slot * staging_slot_bytes_,
                                 send.run.num_pages * encoded_bytes);
  std::vector<std::byte> page(page_bytes);
  for (uint32_t i = 0; i < send.run.num_pages; ++i) {
    ReadExtents(options_.kv.memory, send.source, i * page_bytes,
                absl::MakeSpan(page));
    EncodePage(*send.map, send.encoding, page,
               slot.subspan(i * encoded_bytes, encoded_bytes));
  }
  return slot;
}

uint32_t HandoffSender::Core::MaxPages(const Transfer& transfer) const {
  const uint32_t most = transfer.max_pages_per_message;
  const OutgoingTransfer& pages = transfer.pages;
  const std::optional<PageRun> batch = pages.NextBatch(most);
  // Pages that are several runs each stay so.
  if (!batch.has_value() || pages.map()->max_extents() > 1 ||
      !transport_->PeerProperties(transfer.peer).prefers_runs) {
    return most;
  }
  const std::vector<Extent> extents =
      pages.map()->Extents(options_.kv, region_, *batch,
                           pages.content().first_token, pages.content().blocks);
  return static_cast<uint32_t>(
      extents[0].length / static_cast<uint64_t>(pages.map()->page_bytes()));
}

std::optional<HandoffSender::Core::PageSend> HandoffSender::Core::NextSend() {
  for (auto it = work_.begin(); it != work_.end();) {
    const TransferId id = *it;
    Transfer* transfer = FindLive(id);
    if (transfer == nullptr) {
      it = work_.erase(it);
      continue;
    }
    OutgoingTransfer& pages = transfer->pages;
    const uint32_t max_window =
        transport_->PeerProperties(transfer->peer).max_sends_in_flight;
    const auto window = window_.find(transfer->peer);
    const bool staged = pages.encoding() != WireEncoding::kExact;
    if ((window != window_.end() && window->second >= max_window) ||
        (staged && free_slots_.empty())) {
      ++it;
      continue;
    }
    const std::optional<PageRun> run = pages.TakeBatch(MaxPages(*transfer));
    if (run.has_value()) {
      ++window_[transfer->peer];
      PageSend send{id, transfer->peer, *run, pages.encoding(), pages.map()};
      send.source = pages.map()->Extents(options_.kv, region_, *run,
                                         pages.content().first_token,
                                         pages.content().blocks);
      if (staged) {
        send.slot = free_slots_.back();
        free_slots_.pop_back();
      }
      return send;
    }
    if (pages.CommitDue()) {
      pairing_.Send(transfer->peer, pages.TakeCommit(id));
    }
    transfer->has_work = false;
    it = work_.erase(it);
  }
  return std::nullopt;
}

bool HandoffSender::Core::Submit(PageSend send,
                                 absl::Span<const Extent> payload) {
  Transfer& transfer = *transfers_.at(send.transfer);
  // Both may have changed while the lock was not held.
  if (transfer.pages.ended() || !pairing_.IsReady(send.peer)) {
    EndSend(send, /*sent=*/false);
    return false;
  }
  const std::string header = pairing_.EncodeFor(
      send.peer, wire::Kv{.transfer = send.transfer,
                          .generation = transfer.pages.generation(),
                          .pages = send.run,
                          .encoding = send.encoding});
  const uint64_t cookie = next_cookie_++;
  const absl::Status status = transport_->Send(
      send.peer,
      ByteSpan(reinterpret_cast<const std::byte*>(header.data()),
               header.size()),
      payload, cookie);
  if (status.ok()) {
    transfer.extents += static_cast<int64_t>(payload.size());
    on_wire_[cookie] = std::move(send);
    return true;
  }
  TellReceiver(send.transfer, transfer, TransferOutcome::kTransportFailed);
  Fail(send.transfer, transfer, TransferOutcome::kTransportFailed,
       std::string(status.message()));
  EndSend(send, /*sent=*/false);
  return false;
}

void HandoffSender::Core::EndSend(const PageSend& send, bool sent) {
  auto window = window_.find(send.peer);
  if (--window->second == 0) window_.erase(window);
  if (send.slot.has_value()) free_slots_.push_back(*send.slot);
  if (sent) {
    totals_.bytes_sent +=
        send.run.num_pages *
        static_cast<uint64_t>(EncodedPageBytes(*send.map, send.encoding));
  }
  Transfer& transfer = *transfers_.at(send.transfer);
  transfer.pages.EndSend();
  if (transfer.pages.ended()) QuiesceIfQuiet(send.transfer);
}

}  // namespace baton::kv_transfer
