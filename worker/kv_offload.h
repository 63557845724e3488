// A second tier of the prefix cache: full KV blocks go to a store (host memory,
// a file) when the sequence that they are of is over, and come back for prompts
// that begin with the same tokens, when the cache has them no more, or the
// process is another one.
//
// What the store has is a prefix cache, too, of places instead of blocks: the
// same names, the same exact comparison, the same order of eviction. So a block
// is stored only behind those before it.
//
//   Save: the sequence's full blocks that are not stored are written piece by
//   piece, from where the cache has them. Only pieces that are under way are
//   held, an eighth of all blocks at most: what the pool needs before its turn
//   comes is not stored, and no more waits than there are blocks.
//
//   Load: a sequence that has blocks for its prompt begins where the cache
//   ends; what is stored behind that is read into its own blocks. It is
//   loading() until then, and no step runs it. When reading takes longer than
//   computing would, or something is wrong with what was read, it goes on with
//   what it has.
//
// Where KV lies on a device, pieces pass through staged blocks of the host
// (engine/kv_stage.h), of which it has a share of its own.
//
// A block that is not what was written is never used: the store ends then as if
// it were empty.
//
// Used by the worker's loop thread only; both loops of a dual worker share it.
//
// Invariants (CheckInvariants):
//   1. Blocks that are read into are held for that, and by their sequence while
//      it has not given them up.
//   2. Places that are written to or read from are held.
//   3. Blocks that wait or are written are counted, and within their bound.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/clock.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "engine/engine.h"
#include "engine/kv_stage.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/prefix_loader.h"
#include "scheduling/sequence.h"
#include "worker/kv_store.h"

namespace baton::worker {

class KvOffload final : public scheduling::PrefixLoader {
 public:
  struct Parts {
    engine::Engine* engine = nullptr;
    // Of the engine's blocks, and what is cached in them.
    scheduling::BlockPool* pool = nullptr;
    scheduling::PrefixCache* cache = nullptr;
    // Where the engine has a stage: its staged blocks, and how many of them
    // are for this.
    scheduling::BlockPool* staged = nullptr;
    int32_t staged_share = 0;
    const Clock* clock = nullptr;
    // A load is given up when it takes twice as long as computing would, and at
    // least the first; the other while nothing is known of steps.
    absl::Duration least_patience = absl::Seconds(1);
    absl::Duration patience_at_first = absl::Seconds(5);
  };
  // Since the beginning.
  struct Stats {
    uint64_t saved_blocks = 0;
    uint64_t dropped_backlog = 0;  // too many waited, or were evicted
    uint64_t dropped_full = 0;     // no place was free
    uint64_t dropped_error = 0;
    uint64_t queried_tokens = 0;  // prompts that were looked for
    uint64_t loaded_tokens = 0;
    uint64_t loads_done = 0;
    uint64_t loads_failed = 0;    // some blocks were not what was written
    uint64_t loads_given_up = 0;  // took too long
    uint64_t loads_skipped = 0;   // computing is faster
    double load_seconds = 0;      // of loads_done
  };

  // The parts outlive it. The store is of the engine's KV memory, or of its
  // stage's.
  KvOffload(const Parts& parts, std::unique_ptr<KvStore> store);
  ~KvOffload() override;

  int32_t StoredTokens(const scheduling::Sequence& sequence,
                       int32_t max_tokens) const override;
  bool Load(scheduling::Sequence* sequence, const scheduling::StepCost& cost,
            int32_t chunk) override;
  // The sequence is over, or gives its blocks up: it loads no more.
  void StopLoading(scheduling::Sequence* sequence);

  // Stores the full blocks of the sequence's computed tokens. It may go then,
  // and its blocks; they are not written to any more.
  void Save(const scheduling::Sequence& sequence);

  // Goes on with what is under way. Once a turn.
  void Poll();
  // Goes on until everything is written, at most until then.
  void Flush(absl::Time until);

  // Forgets everything: what is stored cannot be trusted.
  void Clear();

  // By place.
  scheduling::PrefixCache& stored() { return stored_; }
  const scheduling::PrefixCache& stored() const { return stored_; }
  int64_t stored_bytes() const { return stored_.num_blocks() * block_bytes_; }
  int64_t capacity_bytes() const { return places_.size() * block_bytes_; }
  const Stats& stats() const { return stats_; }

  // For audits: blocks that are read into, and those that are written out;
  // staged blocks.
  std::vector<absl::Span<const BlockId>> Filling() const;
  std::vector<absl::Span<const BlockId>> Draining() const;
  std::vector<absl::Span<const BlockId>> Staged() const;
  void CheckInvariants() const;

 private:
  struct Text {
    std::string salt;
    std::vector<TokenId> tokens;

    scheduling::PrefixText view() const { return {salt, tokens}; }
  };
  // Of a sequence, until all of its pieces are read.
  struct Loading {
    scheduling::Sequence* sequence = nullptr;  // null: not wanted any more
    scheduling::PooledBlocks blocks;  // the sequence's, from `first` on
    scheduling::PooledBlocks places;  // of the sequence's, from the first on
    int32_t first = 0;
    int32_t count = 0;
    int32_t issued = 0;  // blocks that are read, or under way
    int32_t good = 0;    // before the first that is known not to be
    int num_pieces = 0;  // under way
    std::string error;
    absl::Time began;
    absl::Time until;
  };
  // Of a sequence, until all of its pieces are written.
  struct Saving {
    Text text;
    // How far it is stored, and its places.
    scheduling::CachedPrefix at;
    scheduling::PooledBlocks places;
    // The last that was issued.
    BlockId before = scheduling::PrefixCache::kNoBlock;
    uint64_t before_stamp = 0;
    int32_t issued = 0;  // blocks of the sequence, those stored before included
    // Of its text, what has gone on its way, in the prefix cache.
    scheduling::CachedPrefix cached;
    int32_t end = 0;  // where to stop
    std::vector<Hash128> names;
    int num_pieces = 0;  // under way
    bool failed = false;
  };
  // Some blocks on their way.
  struct Piece {
    Loading* loading = nullptr;  // or
    Saving* saving = nullptr;
    int32_t first = 0;  // of the sequence's blocks
    int32_t count = 0;
    // Of a save.
    scheduling::PooledBlocks blocks;
    scheduling::PooledBlocks places;
    std::vector<StoredBlock> stored;
    // With a stage.
    scheduling::PooledBlocks staged;
    engine::KvStage::Ticket ticket;
    // As the store said.
    int32_t num_good = 0;
    std::string error;
  };

  int32_t PieceBlocks() const;
  // Pieces (kv_offload_pieces.cc).
  // Staged blocks for a piece, where there is a stage. False: too few are free;
  // loads may have all of the share, saves half of it.
  bool Stage(bool load, int32_t count, scheduling::PooledBlocks* staged);
  std::vector<engine::StagedBlock> StagedBlocks(const Piece& piece) const;
  // One that took too long has not ended: the store hangs.
  bool Hangs() const;
  double SecondsOf(int32_t num_blocks) const;

  void Restore(const std::vector<StoredBlock>& stored);
  void IssueLoads();
  bool IssueLoad(Loading* loading);
  void IssueSaves();
  bool IssueSave(Saving* saving);
  void Write(uint64_t id, Piece* piece);
  void OnStoreDone(const KvStore::Done& done);
  // A copy between the device and staged blocks is done.
  void OnCopied(uint64_t id);
  void EndPiece(uint64_t id);
  void EndLoadPiece(const Piece& piece);
  void EndSavePiece(Piece* piece);
  void CheckTime();
  void GiveUp(Loading* loading);
  void EndLoadings();
  void EndSavings();
  // What was not issued is not stored.
  void Drop(Saving* saving, uint64_t* counter);

  engine::KvStage* const stage_;
  scheduling::BlockPool* const pool_;
  scheduling::PrefixCache* const cache_;
  scheduling::BlockPool* const staged_;
  const int32_t staged_share_;
  const Clock* const clock_;
  const absl::Duration least_patience_;
  const absl::Duration patience_at_first_;
  const int32_t num_layers_;
  const int32_t block_size_;
  const int64_t block_bytes_;
  const int32_t max_pending_;
  std::unique_ptr<KvStore> store_;

  scheduling::BlockPool places_;
  scheduling::PrefixCache stored_;
  std::vector<uint64_t> stamps_;  // by place
  uint64_t last_stamp_ = 0;

  std::list<Loading> loadings_;
  std::list<Saving> savings_;
  // Blocks of savings_ that wait or are under way, and their names.
  int32_t num_pending_ = 0;
  absl::flat_hash_set<Hash128> pending_;
  absl::flat_hash_map<uint64_t, std::unique_ptr<Piece>> pieces_;
  std::deque<uint64_t> copying_;  // pieces with a ticket that is not done
  uint64_t last_piece_ = 0;
  int num_load_pieces_ = 0;
  int num_save_pieces_ = 0;
  int32_t staged_for_loads_ = 0;
  int32_t staged_for_saves_ = 0;
  // Sums over the loads, with forgetting.
  double read_bytes_ = 0;
  double read_seconds_ = 0;
  Stats stats_;
};

}  // namespace baton::worker
