// The inside of HandoffReceiver: its state, and what the transport calls.
// Only handoff_receiver.cc and receiver_*.cc include it. One lock guards
// everything; it is never held while a page is hashed or the worker is woken.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/incoming_transfer.h"
#include "kv_transfer/pairing.h"
#include "kv_transfer/wire.h"

namespace baton::kv_transfer {

class HandoffReceiver::Core final : public TransportHandler {
 public:
  Core(Transport* transport, HandoffOptions options, RegionId region);
  ~Core() override;

  // As in HandoffReceiver; any thread.
  // Sets memory aside for what measures the links. Before Start.
  absl::Status SetUpProbes();

  absl::Status Open(OpenTransfer transfer) ABSL_LOCKS_EXCLUDED(mu_);
  void Abort(TransferId transfer, TransferOutcome reason)
      ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<Event> Poll() ABSL_LOCKS_EXCLUDED(mu_);
  Stats stats() const ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<TransferId> NearEnd() const ABSL_LOCKS_EXCLUDED(mu_);

  // TransportHandler; the progress thread.
  void OnPeerUp(PeerId peer, const std::string& address) override;
  void OnPeerDown(PeerId peer, const absl::Status& why) override;
  void OnMessage(PeerId peer, ByteSpan header) override;
  std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                   uint64_t payload_bytes) override;
  void CopyLanding(PeerId peer, uint64_t cookie, ByteSpan from,
                   absl::Span<std::byte> to, Stores stores) override;
  void OnLanded(PeerId peer, uint64_t cookie,
                const absl::Status& status) override;
  void OnSent(PeerId peer, uint64_t cookie,
              const absl::Status& status) override {}
  void OnTick() override;

 private:
  struct Transfer {
    Transfer(const KvGeometry& kv, int32_t block_size, int32_t num_tokens,
             OpenTransfer open)
        : pages(kv, block_size, open.generation, std::move(open.blocks),
                num_tokens),
          expected_sender(open.sender),
          holder(open.holder),
          owner(std::move(open.owner)),
          deadline(open.deadline) {}

    IncomingTransfer pages;
    const std::optional<Incarnation> expected_sender;
    const std::optional<uint64_t> holder;
    const TransferOwner owner;
    // Of the transfer; once it ended, of its quarantine.
    absl::Time deadline;
    // Who sends it, from the first message that fitted on.
    std::optional<PeerId> peer;
    Incarnation sender{};
    // Since when the expected sender is not connected, if it was.
    std::optional<absl::Time> awaited_since;
    std::optional<absl::Time> first_byte;
  };
  struct PostedReceive {
    TransferId transfer{};
    uint32_t generation = 0;
    wire::Kv message;
    std::shared_ptr<const PageMap> map;
    // Where the pages belong; what lands takes the first bytes of it.
    std::vector<Extent> target;
    // Of what has landed so far; the progress thread's alone.
    std::unique_ptr<PagesChecksum> checksum;
  };

  // Holds the lock; on the way out collects events and wakes the worker.
  class Section;

  // Binds the transfer to what the sender's pages mean; false: it fails.
  bool Bind(PeerId peer, TransferId id, Transfer& transfer,
            WireEncoding encoding) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The open transfer that a message of `peer` is about, bound to that peer
  // from now on; or null, and why.
  Transfer* Claim(PeerId peer, TransferId id, uint32_t generation,
                  TransferOutcome* why_not) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The transfer that a receive was posted for. Null: it was not waited for,
  // which only a removed fence can bring about.
  Transfer* OwnerOf(const PostedReceive& posted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One more is posted for the peer, or has landed.
  void AddPost(PeerId peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPost(PeerId peer, bool landed) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CloseStalledPeers(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether its sender, of whom nothing has come, was lost and did not connect
  // again.
  bool StaysAway(Transfer& transfer, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Landing> AcceptProbe(PeerId peer, const wire::Probe& probe,
                                     uint64_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Puts the pages that landed encoded where they belong, as bf16. Lock not
  // held.
  void Decode(const PostedReceive& posted);
  std::optional<Landing> AcceptPayload(PeerId peer, const wire::Kv& kv,
                                       uint64_t payload_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnCommit(PeerId peer, const wire::Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAbort(PeerId peer, const wire::Abort& abort)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FinishIfComplete(TransferId id, Transfer& transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Ends the transfer: no more claims, quarantine. Reports nothing.
  void End(TransferId id, Transfer& transfer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it with a Failed event.
  void Fail(TransferId id, Transfer& transfer, TransferOutcome outcome,
            std::string detail) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What it comes over, as far as that is known.
  std::string TransportOf(const Transfer& transfer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Tells whoever sends it, or is expected to, that it ended.
  void TellSender(TransferId id, const Transfer& transfer,
                  TransferOutcome reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Forgets an ended transfer once nothing can write to its blocks.
  void QuiesceIfQuiet(TransferId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Transport* const transport_;
  const HandoffOptions options_;
  const RegionId region_;
  const int32_t block_size_;

  mutable absl::Mutex mu_;
  Pairing pairing_ ABSL_GUARDED_BY(mu_);
  // Ordered, so that the same events give the same messages in the same order.
  std::map<TransferId, std::unique_ptr<Transfer>> transfers_
      ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, PostedReceive> posted_ ABSL_GUARDED_BY(mu_);
  // Of each peer that something is posted for, or was, where a device waits for
  // it; probes included.
  struct Posts {
    int count = 0;
    absl::Time since;  // something landed last, or was posted first
    bool landed = false;
    bool down = false;
  };
  std::map<PeerId, Posts> posts_ ABSL_GUARDED_BY(mu_);
  // Payloads that only measure the link, and where they go.
  absl::flat_hash_map<uint64_t, wire::Probe> posted_probes_
      ABSL_GUARDED_BY(mu_);
  std::vector<std::byte> probe_memory_;  // where KvGeometry has none
  std::optional<RegionId> probe_region_;
  uint64_t next_cookie_ ABSL_GUARDED_BY(mu_) = 1;
  std::vector<Event> events_ ABSL_GUARDED_BY(mu_);
  Stats totals_ ABSL_GUARDED_BY(mu_);
};

class ABSL_SCOPED_LOCKABLE HandoffReceiver::Core::Section final {
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
