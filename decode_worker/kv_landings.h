// What comes by hand-off, on its way into the blocks of sequences. Where the
// engine's KV lies in the host's memory it lands in them; else in staged blocks
// (engine/kv_stage.h), from where it is copied on, each layer as soon as it is
// there. A transfer has then landed, and is quiet, once its last copy is done:
// until then the loop keeps the blocks that it goes to, and its staged blocks
// are nobody else's.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "engine/engine.h"
#include "engine/kv_stage.h"
#include "kv_transfer/handoff_receiver.h"
#include "scheduling/block_pool.h"
#include "worker/kv_blocks.h"

namespace baton::sim {
class LoopInspector;
}

namespace baton::decode_worker {

class KvLandings final {
 public:
  using Event = kv_transfer::HandoffReceiver::Event;

  // All but the receiver outlive it; `blocks` of the engine.
  KvLandings(std::unique_ptr<kv_transfer::HandoffReceiver> receiver,
             engine::Engine* engine, worker::KvBlocks* blocks);

  // As HandoffReceiver::Open, with the blocks of the sequence; also
  // ResourceExhausted: too few staged blocks are free; OutOfRange: it would
  // need more than there are. They stay the transfer's until its Landed or
  // Quiesced.
  absl::Status Open(kv_transfer::HandoffReceiver::OpenTransfer transfer);

  void Abort(TransferId transfer) { receiver_->Abort(transfer); }

  // As HandoffReceiver::Poll, without what is between: Landed and Quiesced come
  // when nothing touches the sequence's blocks any more. Landed::at is when all
  // was there, verified, in staged blocks or those.
  std::vector<Event> Poll();

  // As HandoffReceiver's.
  std::vector<TransferId> NearEnd() const;
  kv_transfer::HandoffReceiver::Stats stats() const {
    return receiver_->stats();
  }

 private:
  // A transfer by way of staged blocks.
  struct Staged {
    std::vector<engine::StagedBlock> blocks;
    scheduling::PooledBlocks held;
    std::optional<engine::KvStage::Ticket> last;
  };

  int32_t NumStaged() const;
  void CopyLayer(const kv_transfer::HandoffReceiver::LayerLanded& landed);
  bool CopiesDone(TransferId transfer) const;
  // Gives an event to the loop, and the staged blocks back.
  void Finish(Event event, std::vector<Event>* events);

  const std::unique_ptr<kv_transfer::HandoffReceiver> receiver_;
  engine::KvStage* const stage_;
  worker::KvBlocks* const blocks_;
  absl::flat_hash_map<TransferId, Staged> transfers_;
  // Landed and Quiesced that wait for copies.
  std::deque<Event> waiting_;

  // Audits the blocks (tests/sim).
  friend class ::baton::sim::LoopInspector;
};

}  // namespace baton::decode_worker
