// The prefill worker's side of the hand-off: sends the KV pages of a request,
// layer by layer while later layers compute, then commits and waits for the
// receiver's word.
//
// Life of a transfer:
//   1. Start(): the grant is there; names the tokens whose KV goes over.
//   2. sending: SendLayer() passes pages on as they are computed; the progress
//      thread batches, hashes and sends them, a bounded number at a time.
//   3. Commit(): every page of every layer was passed on. Once all are sent the
//      commit goes out, and the receiver verifies and answers.
//   4. The answer: ok: event Acked; else event Failed.
//   5. Before 4, any of: Abort() by the worker (no Failed event), abort by the
//      receiver, deadline, peer lost, a send that failed: event Failed, and the
//      receiver is told where there is one.
//   6. When no send of it is outstanding any more: event Quiesced. When that
//      takes too long, the peer is closed by force, which completes them.
// A worker that hands a sequence to several decode workers of a tensor-parallel
// group starts a transfer to each; the heads that both ends have go over.
//
// So each started transfer ends with exactly one Quiesced, after Acked, Failed
// or Abort(). Until Quiesced the pages handed to SendLayer must be neither
// changed nor freed.
//
// The checksum is computed on the progress thread right before a page is sent,
// not in SendLayer: that keeps the engine's thread free, and the page is about
// to be read there anyway.
//
// Life of a peer: Pair() connects and says hello; the receiver compares and
// answers, and we compare its answer too. Event PeerReady, or PeerRefused with
// the reason, which is logged on both sides. Pair at join, never while a
// request waits. PeerLost follows PeerReady when the connection ends; Pair()
// again makes a new connection.
//
// Threads: all functions from any thread; none blocks. SendLayer is made for
// the engine's thread between two layers: it takes a lock and wakes the
// progress thread, no more.
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
#include "absl/types/span.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/peer_events.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class HandoffSender final {
 public:
  struct Acked {
    TransferId transfer{};
    uint32_t generation = 0;
    int64_t bytes = 0;
    // From the first SendLayer with pages to the receiver's word; without any,
    // as `exposed`.
    absl::Duration duration;
    // From when all was computed (Commit) to the receiver's word: what compute
    // did not hide. More than `duration` where nothing was sent by then.
    absl::Duration exposed;
    // Runs of bytes that the transport was given, in all payloads.
    int64_t extents = 0;
    // What it went over: "ucx/tcp".
    std::string transport;
  };
  // Quiesced follows, perhaps much later.
  struct Failed {
    TransferId transfer{};
    uint32_t generation = 0;
    TransferOutcome outcome{};
    std::string detail;
    std::string transport;  // as in Acked
  };
  struct Quiesced {
    TransferId transfer{};
    uint32_t generation = 0;
  };
  using Event = std::variant<PeerReady, PeerRefused, PeerLost, LinkMeasured,
                             Acked, Failed, Quiesced>;

  // What the decode worker granted.
  struct Grant {
    TransferId transfer{};
    uint32_t generation = 0;
    // Which decode worker, in which life.
    Incarnation receiver{};
    // The sequence's tokens [first_token, first_token + num_tokens) go over;
    // those before are there already. num_tokens may be 0.
    int32_t first_token = 0;
    int32_t num_tokens = 0;
    // Whose lease the transfer ends with (options.lease_until).
    std::optional<uint64_t> holder;
    TransferOwner owner;
  };

  struct Stats {
    uint32_t peers_ready = 0;
    uint32_t transfers_open = 0;
    // Ended, but with sends outstanding.
    uint32_t transfers_quarantined = 0;
    // Totals since start.
    uint64_t bytes_sent = 0;
    uint64_t transfers_acked = 0;
    // Of those started, how many go over in another form (options.wire).
    uint64_t transfers_encoded = 0;
    uint64_t transfers_failed = 0;  // Failed events
    uint64_t messages_dropped = 0;  // stale or unknown
    uint64_t peers_closed_by_force = 0;
  };

  // Registers KV memory with `transport` and starts it. The transport must
  // outlive the sender, and the sender's destructor stops it.
  // REQUIRES: a geometry that lies within its memory, self.role is PREFILL.
  static absl::StatusOr<std::unique_ptr<HandoffSender>> Create(
      Transport* transport, HandoffOptions options);

  // Stops the transport: afterwards nothing reads KV memory.
  ~HandoffSender();
  HandoffSender(const HandoffSender&) = delete;
  HandoffSender& operator=(const HandoffSender&) = delete;

  // Begins to pair with the decode worker at `address` ("host:port"); event
  // PeerReady or PeerRefused follows. No-op (OK, no event) while a connection
  // to this address is up or on its way. InvalidArgument: malformed address.
  // ResourceExhausted: too many peers, or too many events not yet polled.
  absl::Status Pair(const std::string& address);

  // Whether this life of a decode worker is paired.
  bool IsReady(Incarnation receiver) const;

  // `blocks`: the sequence's blocks here, in logical order, at least as many as
  // hold first_token + num_tokens tokens; first_token must be where a block of
  // the receiver begins (else InvalidArgument).
  // FailedPrecondition: that receiver is not paired. ResourceExhausted at
  // max_transfers or max_waiting_events. AlreadyExists: the transfer was
  // started and is not quiesced.
  // REQUIRES: blocks in range of KV memory.
  absl::Status Start(const Grant& grant, absl::Span<const BlockId> blocks,
                     absl::Time deadline);

  // The first `blocks_ready` logical blocks of the sequence hold their final
  // keys and values of `layer`: sends what of the grant was not passed on
  // before. A smaller number than last time is no news. No-op when the
  // transfer ended.
  // REQUIRES: layer in range; nothing new after Commit().
  void SendLayer(TransferId transfer, int32_t layer, int32_t blocks_ready);

  // No-op when the transfer ended. `computed_at`: when the last of it was
  // computed, from which Acked::exposed counts; at the latest, the call.
  // REQUIRES: all tokens of all layers were passed on; called once.
  void Commit(TransferId transfer, const CommitRecord& record,
              absl::Time computed_at = absl::InfiniteFuture());

  // Ends the transfer from our side; Quiesced follows. No-op when it ended.
  void Abort(TransferId transfer,
             TransferOutcome reason = TransferOutcome::kCancelled);

  // Everything that happened since the last call, in order.
  std::vector<Event> Poll();

  Stats stats() const;

 private:
  class Core;
  explicit HandoffSender(std::unique_ptr<Core> core);

  const std::unique_ptr<Core> core_;
};

}  // namespace baton::kv_transfer
