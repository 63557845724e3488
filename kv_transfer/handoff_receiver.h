// The decode worker's side of the hand-off: takes KV into reserved blocks,
// verifies that all of it came and that it is what was sent, and says so.
//
// Life of a transfer:
//   1. Open(): the worker reserved blocks; nothing has arrived.
//   2. receiving: payloads of one peer land. Each (layer, wire page) lands at
//      most once; what fits no open transfer, generation, peer or range is
//      dropped and touches no memory. The commit may come before the last
//      payload.
//   3. All pages landed and the commit is there:
//      a. counts and checksum agree: CommitAck(ok), event Landed. The blocks
//         are the worker's; the transfer is gone.
//      b. else CommitAck(why), event Failed, then 5.
//   4. Before 3, any of: Abort() by the worker (no Failed event), abort by the
//      sender, deadline, peer lost, a receive that failed: event Failed, and
//      the sender is told where there is one.
//   5. quarantine: nothing is accepted any more, but receives that were posted
//      may still write. When the last of them completed: event Quiesced; the
//      blocks may be used again. When that takes too long, the peer is closed
//      by force, which completes them.
// A sequence whose KV is spread over several prefill workers (tensor
// parallelism) has a transfer from each, into the same blocks; what Landed says
// of heads tells when all of it is there.
//
// So each opened transfer ends with exactly one of Landed and Quiesced, and a
// late write can never land in another request's blocks.
//
// Life of a peer: it connects, says hello (PeerHello), is compared, and is
// answered. What fits (proto/fingerprint.h, kv_transfer/page_map.h): event
// PeerReady. Else event PeerRefused, logged with the fields that differ. Until
// then it can move no byte. PeerLost follows PeerReady when the connection
// ends; a worker that restarted, or connected again, is a new peer.
//
// Threads: all functions from any thread; none blocks. Deadlines are enforced
// on the transport's progress thread, whatever the worker's loop does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/peer_events.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class HandoffReceiver final {
 public:
  // All pages of a layer are there, before anything of them is verified
  // (options.report_layers). Comes before Landed and Failed of its transfer;
  // never for one without pages.
  struct LayerLanded {
    TransferId transfer{};
    uint32_t generation = 0;
    int32_t layer = 0;
  };
  struct Landed {
    TransferId transfer{};
    uint32_t generation = 0;
    CommitRecord record;
    Incarnation sender{};
    // The heads that came, of the model's: those that both sides have.
    int32_t first_head = 0;
    int32_t num_heads = 0;
    int64_t bytes = 0;  // over the wire
    // Not kExact: less precise than what the sender has.
    WireEncoding encoding = WireEncoding::kExact;
    // When it was verified, on options.clock.
    absl::Time at;
    // From the first payload's announcement until then.
    absl::Duration duration;
    // What it came over: "ucx/tcp".
    std::string transport;
  };
  // Quiesced follows, perhaps much later.
  struct Failed {
    TransferId transfer{};
    uint32_t generation = 0;
    TransferOutcome outcome{};
    std::string detail;
    // As in Landed; before its sender is known, the name of all that it could
    // have been: "local/memfd+ucx/tcp".
    std::string transport;
  };
  struct Quiesced {
    TransferId transfer{};
    uint32_t generation = 0;
  };
  using Event = std::variant<PeerReady, PeerRefused, PeerLost, LayerLanded,
                             Landed, Failed, Quiesced>;

  struct OpenTransfer {
    TransferId transfer{};
    uint32_t generation = 0;
    // Where it goes, in logical order, distinct; may be empty (only the commit
    // is awaited then).
    std::vector<BlockId> blocks;
    // How many tokens' KV comes, from the first slot of blocks[0] on. Unset:
    // all that the blocks hold.
    std::optional<int32_t> num_tokens;
    // When given, only this life of a prefill worker may send, and its end
    // fails the transfer even before its first message: two seconds after it
    // was lost, if it did not connect again.
    std::optional<Incarnation> sender;
    absl::Time deadline;  // on options.clock
    // Whose lease the transfer ends with (options.lease_until).
    std::optional<uint64_t> holder;
    TransferOwner owner;
  };

  struct Stats {
    uint32_t peers_ready = 0;
    uint32_t transfers_open = 0;
    uint32_t transfers_quarantined = 0;
    int64_t blocks_quarantined = 0;
    // Of open transfers: nothing has come of them yet, or something has.
    int64_t blocks_granted = 0;
    int64_t blocks_filling = 0;
    // Totals since start.
    uint64_t bytes_received = 0;
    uint64_t transfers_landed = 0;
    uint64_t transfers_failed = 0;  // Failed events
    uint64_t messages_dropped = 0;  // stale, unknown, duplicate, out of range
    uint64_t peers_closed_by_force = 0;
  };

  // Registers KV memory with `transport` and starts it. The transport must
  // outlive the receiver, and the receiver's destructor stops it.
  // REQUIRES: a geometry that lies within its memory, self.role is DECODE.
  static absl::StatusOr<std::unique_ptr<HandoffReceiver>> Create(
      Transport* transport, HandoffOptions options);

  // Stops the transport: afterwards nothing writes to KV memory.
  ~HandoffReceiver();
  HandoffReceiver(const HandoffReceiver&) = delete;
  HandoffReceiver& operator=(const HandoffReceiver&) = delete;

  // ResourceExhausted at max_transfers or max_waiting_events.
  // REQUIRES: the transfer is not open nor quarantined; blocks in range and
  // distinct, and that hold num_tokens.
  absl::Status Open(OpenTransfer transfer);

  // Ends the transfer from our side; Quiesced follows. No-op when it ended: the
  // event that says how is in Poll() or was.
  void Abort(TransferId transfer,
             TransferOutcome reason = TransferOutcome::kCancelled);

  // Everything that happened since the last call, in order.
  std::vector<Event> Poll();

  // Transfers that will land soon: of some layer all pages have come, or are
  // coming, so their sender computes the last of the tokens. And those that
  // have landed since the last Poll(). In no order.
  std::vector<TransferId> NearEnd() const;

  Stats stats() const;

 private:
  class Core;
  explicit HandoffReceiver(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

}  // namespace baton::kv_transfer
