// The inside of HandoffSender: its state, and what the transport calls. Only
// handoff_sender.cc and sender_*.cc include it. One lock guards everything; it
// is never held while pages are hashed or the worker is woken. Pages are sent
// on the transport's progress threads only.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "kv_transfer/handoff_sender.h"
#include "kv_transfer/link_meter.h"
#include "kv_transfer/outgoing_transfer.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/pairing.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class HandoffSender::Core final : public TransportHandler {
 public:
  Core(Transport* transport, HandoffOptions options, RegionId region);
  ~Core() override;

  // Sets memory aside for what goes over in another form. Before Start.
  absl::Status SetUpStaging();

  // As in HandoffSender; any thread.
  absl::Status Pair(const std::string& address) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsReady(Incarnation receiver) const ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Start(const Grant& grant, absl::Span<const BlockId> blocks,
                     absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void SendLayer(TransferId transfer, int32_t layer, int32_t blocks_ready)
      ABSL_LOCKS_EXCLUDED(mu_);
  void Commit(TransferId transfer, const CommitRecord& record,
              absl::Time computed_at) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(TransferId transfer, TransferOutcome reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Event> Poll() ABSL_LOCKS_EXCLUDED(mu_);
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);

  // TransportHandler; the progress thread.
  void OnPeerUp(PeerId peer, const std::string& address) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnMessage(PeerId peer, ByteSpan header) override;
  std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                   uint64_t payload_bytes) override;
  void OnLanded(PeerId peer, uint64_t cookie,
                const absl::Status& status) override {}
  void OnSent(PeerId peer, uint64_t cookie,
              const absl::Status& status) override;
  void OnTick() override;

 private:
  struct Transfer {
    Transfer(const KvGeometry& kv, std::shared_ptr<const PageMap> map,
             WireEncoding encoding, const Grant& grant,
             std::vector<BlockId> blocks, PeerId to, uint32_t max_pages,
             absl::Time until)
        : pages(kv, std::move(map), encoding, grant.generation,
                {.blocks = std::move(blocks),
                 .first_token = grant.first_token,
                 .num_tokens = grant.num_tokens}),
          peer(to),
          max_pages_per_message(max_pages),
          holder(grant.holder),
          owner(grant.owner),
          deadline(until) {}

    OutgoingTransfer pages;
    const PeerId peer;
    // As the transport of this peer likes it.
    const uint32_t max_pages_per_message;
    const std::optional<uint64_t> holder;
    const TransferOwner owner;
    // Of the transfer; once it ended, of its quarantine.
    absl::Time deadline;
    std::optional<absl::Time> first_pages;
    absl::Time computed_at;
    // In the payloads that the transport took.
    int64_t extents = 0;
    // Whether it is in work_.
    bool has_work = false;
    // The receiver aborted and is answered once nothing is on the wire.
    bool owes_abort_ack = false;
  };
  // A batch on its way to the transport, or on the wire.
  struct PageSend {
    TransferId transfer{};
    PeerId peer{};
    PageRun run;
    WireEncoding encoding = WireEncoding::kExact;
    std::shared_ptr<const PageMap> map;
    std::vector<Extent> source;  // where the pages lie in KV memory
    // Where they are encoded to, and go from; kExact: none.
    std::optional<uint32_t> slot;
  };

  // The peer gave something.
  void Progressed(PeerId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closes peers that give nothing.
  void CloseStalledPeers(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Begins to measure the link to a peer that has just become ready.
  void MeasureLink(PeerId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins with the next link that is due and carries no KV at the moment. One
  // at a time, so that they do not slow each other.
  void MeasureLinksAgain(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendProbe(PeerId peer, const LinkMeter::Send& probe)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnProbeReply(PeerId peer, const wire::ProbeReply& reply)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Holds the lock; on the way out collects events and wakes the worker.
  class Section;

  // Sends whatever may be sent now. The progress thread, lock not held.
  void Pump() ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<PageSend> NextSend() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Encodes pages into the send's slot, which is filled up to the end of the
  // span that comes back. Lock not held.
  absl::Span<const std::byte> Encode(const PageSend& send);
  // False when it was not sent and will not be.
  bool Submit(PageSend send, absl::Span<const Extent> payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndSend(const PageSend& send, bool sent)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the progress thread look at the transfer; the caller then calls
  // transport_->Wake().
  void AddWork(TransferId id, Transfer& transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // How KV goes to this peer.
  WireEncoding ChooseEncoding(PeerId peer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wire pages that a slot holds; at least 1.
  uint32_t MaxStagedPages(const PageMap& map, WireEncoding encoding) const;
  // Of the next message.
  uint32_t MaxPages(const Transfer& transfer) const;
  // The transfer unless it ended.
  Transfer* FindLive(TransferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The transfer that a message of `peer` is about, ended or not; null: none.
  Transfer* Match(PeerId peer, TransferId id, uint32_t generation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnCommitAck(PeerId peer, const wire::CommitAck& ack)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAbort(PeerId peer, const wire::Abort& abort)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Ends the transfer: no more sends, quarantine. Reports nothing.
  void End(TransferId id, Transfer& transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it with a Failed event.
  void Fail(TransferId id, Transfer& transfer, TransferOutcome outcome,
            std::string detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellReceiver(TransferId id, const Transfer& transfer,
                    TransferOutcome reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets an ended transfer once nothing reads its pages.
  void QuiesceIfQuiet(TransferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Transport* const transport_;
  const HandoffOptions options_;
  const RegionId region_;
  const int32_t block_size_;
  // Slots for encoded pages.
  std::vector<std::byte> staging_memory_;
  uint64_t staging_slot_bytes_ = 0;
  std::optional<RegionId> staging_region_;

  mutable absl::Mutex mu_;
  Pairing pairing_ ABSL_GUARDED_BY(mu_);
  // Ordered, so that the same events give the same messages in the same order.
  std::map<TransferId, std::unique_ptr<Transfer>> transfers_
      ABSL_GUARDED_BY(mu_);
  // Transfers with pages or a commit to send, oldest work first.
  std::deque<TransferId> work_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, PageSend> on_wire_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<PeerId, uint32_t> window_ ABSL_GUARDED_BY(mu_);
  // Peers that owe us something, and since when they have given nothing.
  std::map<PeerId, absl::Time> waiting_since_ ABSL_GUARDED_BY(mu_);
  // Peers that a payload has gone to; of KV on a device alone.
  std::set<PeerId> reached_ ABSL_GUARDED_BY(mu_);
  // Of the links to peers that are ready.
  std::map<PeerId, LinkMeter> meters_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_slots_ ABSL_GUARDED_BY(mu_);
  uint64_t next_cookie_ ABSL_GUARDED_BY(mu_) = kControlCookie + 1;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  Stats totals_ ABSL_GUARDED_BY(mu_);
};

class ABSL_SCOPED_LOCKABLE HandoffSender::Core::Section final {
 public:
  explicit Section(Core* core) ABSL_EXCLUSIVE_LOCK_FUNCTION(core->mu_)
      : core_(core) {
    core->mu_.Lock();
    was_empty_ = core->events_.empty();
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

}  // namespace baton::kv_transfer
