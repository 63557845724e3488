// One peer of an NCCL transport: the conversation over the control transport,
// the communicator, and everything outstanding. The side that was connected to
// is rank 0.
//
// Life of a peer:
//   1. connecting: the control transport is connected. Rank 0 creates a
//      communicator and tells its id, rank 1 joins; each says Ready when its
//      own is, and is up when it has heard the other's.
//   2. up: messages go over the control transport. A payload is offered there;
//      refused, it is forgotten; accepted, both sides post it.
//   3. down: an error, a deadline, ClosePeer or Stop. The handler is told, what
//      was not posted completes with an error, and the communicator is aborted.
//   4. quiet: the abort has ended, nothing is read or written any more: what
//      was posted completes with an error. A communicator that does not become
//      quiet keeps its memory for ever.
//   5. finished: may be destroyed.
//
// Order: a communicator does what is posted in order, so that both sides must
// post alike, in both directions together. Rank 0 decides: it gives each
// payload that was accepted, whoever sends it, the next turn, and posts it at
// once; rank 1 posts by turns. Control messages may overtake each other.
//
// Threads: the control transport's progress thread only. Calls of the handler
// come from within these functions.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "kv_transfer/region_table.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"
#include "kv_transfer/transports/nccl/communicator.h"
#include "kv_transfer/transports/nccl/nccl_wire.h"

namespace baton::kv_transfer {

class NcclPeer final {
 public:
  // Most payloads of a peer that are accepted and have not landed. A peer that
  // offers more is closed: ours never do.
  static constexpr size_t kMaxLandings = 1024;
  // Most answers and offers to it that the control transport does not take yet.
  static constexpr size_t kMaxUnsaid = 4 * kMaxLandings;

  // What all peers of a transport share. All of it outlives them.
  struct Surroundings {
    Transport* control = nullptr;
    Communicators* communicators = nullptr;
    const RegionTable* regions = nullptr;
    TransportHandler* handler = nullptr;
    uint32_t max_sends_in_flight = 0;
    // The gate of a peer: sends are taken from now on; not any more; one
    // completed.
    std::function<void(PeerId)> set_up;
    std::function<void(PeerId)> set_down;
    std::function<void(PeerId)> end_send;
    // Any thread: this peer's Serve has something to do.
    std::function<void(PeerId)> on_news;
  };

  // `connected_by_us`: else it connected to us. Gives up what is not up by
  // `deadline`.
  NcclPeer(const Surroundings* surroundings, PeerId id, std::string address,
           bool connected_by_us, absl::Time deadline);
  ~NcclPeer();
  NcclPeer(const NcclPeer&) = delete;
  NcclPeer& operator=(const NcclPeer&) = delete;

  // A send that passed the gate.
  void Send(SendOp op);

  // What the control transport says of this peer.
  void OnControlMessage(ByteSpan bytes);
  void OnControlSent(uint64_t cookie, const absl::Status& status);
  void OnControlDown(const absl::Status& why);
  // The control transport has stopped: nothing more comes from there.
  void OnControlStopped();

  // The peer is to be taken down for this.
  void Fail(absl::Status why);

  // Does what there is to do. Call after all of the above and on news.
  void Serve(absl::Time now);

  // Nothing of it is outstanding; the control transport does not know it.
  bool finished() const;

 private:
  enum class State { kConnecting, kUp, kDown };
  // A payload of ours that was offered.
  struct Sending {
    std::vector<absl::Span<std::byte>> memory;
    uint64_t bytes = 0;
    uint64_t cookie = 0;
    bool accepted = false;
    bool posted = false;
  };
  // A payload of the peer that was accepted.
  struct Receiving {
    std::vector<absl::Span<std::byte>> pieces;
    uint64_t cookie = 0;
    bool has_turn = false;
    bool posted = false;
  };
  // Which of the two, and its number.
  struct Posted {
    bool is_send = false;
    uint64_t number = 0;
  };
  // A message that the control transport does not have yet.
  struct Outgoing {
    std::string bytes;
    // Of a message of the user.
    std::optional<uint64_t> cookie;
  };

  int rank() const { return connected_by_us_ ? 1 : 0; }

  // nccl_peer.cc: its life.
  void CreateCommunicator(const std::string& unique_id);
  void TakeNews(CommunicatorNews news);
  void MarkUpWhenReady();
  void TakeDown();
  void BecomeQuiet();
  // Completes with the failure what was not posted.
  void DropUnposted();

  // nccl_messages.cc: what is said, and what follows.
  void Say(std::string bytes, std::optional<uint64_t> cookie = std::nullopt);
  void FlushOutbox();
  void OfferQueued();
  void Take(const nccl_wire::Join& join);
  void Take(const nccl_wire::Ready& ready);
  void Take(const nccl_wire::Message& message);
  void Take(const nccl_wire::Offer& offer);
  void Take(const nccl_wire::Refuse& refuse);
  void Take(const nccl_wire::Accept& accept);
  void Take(const nccl_wire::Turn& turn);
  // Whether it is up, now that a message came that only one that is up sends.
  bool IsUpForPeer();
  // The turn of one of the payloads: rank 0 takes the next, rank 1 has been
  // told.
  uint64_t TakeNextTurn() { return next_turn_++; }
  void PutTurn(uint64_t turn, Posted which);
  void Post(uint64_t turn, const Posted& which);
  void Complete(uint64_t turn, const absl::Status& status);
  void FinishSend(uint64_t cookie, const absl::Status& status);

  const Surroundings* const around_;
  const PeerId id_;
  const std::string address_;
  const bool connected_by_us_;
  const absl::Time deadline_;

  State state_ = State::kConnecting;
  // Not OK: it is to be taken down for this.
  absl::Status failure_;
  bool was_up_ = false;
  bool control_down_ = false;
  bool ready_here_ = false;
  bool ready_there_ = false;

  std::unique_ptr<Communicator> communicator_;  // null: none yet, or quiet
  // Rank 0: the next to give away. Rank 1: the next to post.
  uint64_t next_turn_ = 1;
  std::map<uint64_t, Posted> waiting_turns_;  // rank 1, beyond next_turn_
  std::map<uint64_t, Posted> posted_;         // by turn

  // Sending.
  std::deque<SendOp> queue_;  // payloads beyond the window
  uint64_t last_number_ = 0;
  std::map<uint64_t, Sending> sends_;  // by number

  // Receiving.
  std::map<uint64_t, Receiving> landings_;  // by the peer's number

  // The control transport.
  std::deque<Outgoing> outbox_;
  size_t unsaid_ = 0;  // in outbox_, without messages of the user
  uint64_t last_control_cookie_ = 0;
  // What it has not completed; of messages of the user their cookie.
  absl::flat_hash_map<uint64_t, std::optional<uint64_t>> control_sends_;
};

}  // namespace baton::kv_transfer
