// What goes out by hand-off: the KV of sequences, from their blocks to the
// sender. Where the engine's KV lies in the host's memory it goes out from
// there; else by way of staged blocks (engine/kv_stage.h), to which it is
// copied as it becomes final, with the steps that compute it or beside them,
// and each layer is passed on when it is there.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/engine.h"
#include "engine/kv_stage.h"
#include "kv_transfer/handoff_sender.h"
#include "scheduling/block_pool.h"
#include "worker/kv_blocks.h"

namespace baton::sim {
class LoopInspector;
}

namespace baton::prefill_worker {

class KvSends final {
 public:
  // A transfer's sequence, of which the first `blocks_ready` blocks hold their
  // final KV, or will after the step.
  struct Ready {
    TransferId transfer{};
    int32_t blocks_ready = 0;
  };

  // Both outlive it, and `blocks`, of the engine.
  KvSends(kv_transfer::HandoffSender* sender, engine::Engine* engine,
          worker::KvBlocks* blocks);

  // As HandoffSender::Start. False: too few staged blocks are free now, or
  // others wait for some that came before: it has a place in their line, and is
  // to be tried again. ResourceExhausted also when it would need more than
  // there are.
  absl::StatusOr<bool> Start(const kv_transfer::HandoffSender::Grant& grant,
                             absl::Span<const BlockId> blocks,
                             absl::Time deadline);

  // Nobody will try this one again.
  void Forget(TransferId transfer) { std::erase(waiting_, transfer); }

  // Between steps: sends what of these blocks was not passed on before.
  void PassOn(const Ready& ready);
  // Around a step: of each transfer that it has news for, then in the hook of
  // each layer.
  void BeginStep(std::vector<Ready> ready);
  void OnLayer(int32_t layer);

  // All tokens were passed on, and computed then. No-op when the transfer
  // ended.
  void Commit(TransferId transfer, const kv_transfer::CommitRecord& record,
              absl::Time computed_at);
  // The transfer is quiet: its name may be used again. REQUIRES: the sender
  // said so.
  void Release(TransferId transfer);

  // Passes on what copies have brought. Once a turn.
  void Poll();

 private:
  // A transfer by way of staged blocks.
  struct Staged {
    scheduling::PooledBlocks held;
    // The sequence's; the staged ones stand for those from first_block on.
    std::vector<BlockId> blocks;
    int32_t first_block = 0;
    int32_t passed_on = 0;   // copied or under way
    int32_t num_copies = 0;  // in copies_
    std::optional<engine::KvStage::Ticket> last;
    // Until the copies are done.
    std::optional<kv_transfer::CommitRecord> commit;
    absl::Time computed_at;
  };
  // A layer of some blocks on its way to the host.
  struct Copy {
    engine::KvStage::Ticket ticket;
    Ready ready;
    int32_t layer = 0;
  };
  // Of a transfer that is over, until its copies are.
  struct Retired {
    engine::KvStage::Ticket ticket;
    scheduling::PooledBlocks held;
  };

  int32_t NumStaged() const;
  // Whether it may have so many staged blocks now; else it waits.
  bool HasTurn(TransferId transfer, int32_t count);
  // Blocks that become ready and were not, and are so from now on.
  std::vector<engine::StagedBlock> TakeNew(const Ready& ready, Staged* staged);

  kv_transfer::HandoffSender* const sender_;
  const engine::KvLayout layout_;
  engine::KvStage* const stage_;
  worker::KvBlocks* const blocks_;
  absl::flat_hash_map<TransferId, Staged> transfers_;
  // For staged blocks: only the first may start, so that a long prompt is not
  // passed by short ones for ever.
  std::deque<TransferId> waiting_;
  std::deque<Copy> copies_;
  std::vector<Retired> retired_;
  // Of the step: what each of its layers passes on.
  std::vector<Ready> step_;

  // Audits the blocks (tests/sim).
  friend class ::baton::sim::LoopInspector;
};

}  // namespace baton::prefill_worker
