// Full KV blocks by what they hold: finds the blocks of a prompt's beginning
// that an earlier sequence left behind, and keeps such blocks until the pool
// needs them for something else.
//
// Life of an entry:
//   1. Insert: a sequence has computed a full block, or taken it over verified.
//      Its tokens and all before them name it (block_hash.h). When an entry of
//      that name is there already, it stays, and the sequence keeps its own
//      block for itself.
//   2. held: some sequence holds the block, or that of an entry behind it.
//   3. idle: only the cache does. It can be evicted: longest idle first, and no
//      entry before those behind it.
//   4. Match holds it again, or EvictOne ends it.
// Nobody writes to the block of an entry: it is full.
//
// A match is exact. An entry has its tokens and the entry before it, or the
// salt of its sequence when it is a first one, and both are compared: two
// prefixes whose hashes collide never share KV, and neither do sequences of
// different salts.
//
// Bounded by the pool: at most one entry per block. Match and Insert take time
// in the sequence's own blocks, eviction takes constant time.
//
// Used by the worker's loop thread only. Dies before the pool.
//
// Invariants (CheckInvariants):
//   1. An entry's block is kept in the pool, and no other block is.
//   2. The index has each entry under its hash, and nothing else.
//   3. The entry before one is an entry, and the hash follows from its hash.
//   4. An entry is idle exactly when nobody but the cache holds its block and
//      all entries behind it are idle.
//   5. The list of idle entries has each once, and none before those behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "scheduling/block_hash.h"
#include "scheduling/block_pool.h"
#include "scheduling/prefix_journal.h"
#include "scheduling/sequence.h"

namespace baton::scheduling {

struct PrefixCacheOptions {
  // Off: nothing enters, nothing is found.
  bool enabled = true;
  // Tokens per KV block, >= 1.
  int32_t block_size = 16;
  // What stands before the first block of a salt; another one only in tests.
  Hash128 (*chain_start)(absl::string_view salt) = &ChainStart;
};

// What a prefix says, and who may share it.
struct PrefixText {
  absl::string_view salt;
  absl::Span<const TokenId> tokens;
};

class PrefixCache final : public BlockKeeper {
 public:
  static constexpr BlockId kNoBlock = -1;

  // The pool outlives the cache.
  PrefixCache(const PrefixCacheOptions& options, BlockPool* pool);
  ~PrefixCache() override;
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // The blocks of the longest prefix of the sequence's tokens that is here, of
  // at most `max_tokens` of them. Sequence::cached() says then how many tokens
  // that is; their KV is computed.
  // REQUIRES: the sequence has no blocks; max_tokens <= its tokens.
  PooledBlocks Match(Sequence* sequence, int32_t max_tokens);

  // How many tokens of the sequence Match would find now, of at most
  // `max_tokens`. Holds nothing: they may be gone before Match is called.
  // REQUIRES: max_tokens <= its tokens.
  int32_t CachedTokens(const Sequence& sequence, int32_t max_tokens) const;

  // The full blocks of the sequence's computed tokens enter, those that are not
  // here yet. For a sequence whose blocks did not begin with Match's, too.
  void Insert(Sequence* sequence);

  // The same without a sequence, for a cache of blocks that none runs in
  // (worker/kv_offload.h).
  // The blocks of the longest prefix of `text` that is here; `prefix` says
  // which that is.
  PooledBlocks Hold(const PrefixText& text, CachedPrefix* prefix);
  // At most `count` blocks more, behind `prefix`, which moves on. None when it
  // is gone.
  PooledBlocks HoldNext(const PrefixText& text, int32_t count,
                        CachedPrefix* prefix);
  // How many tokens Hold would find now.
  int32_t CachedTokens(const PrefixText& text) const;
  // `blocks` hold what comes behind `prefix` in `text`, and enter, those that
  // are not here yet; `prefix` moves on as far as it is here then. Nothing
  // enters behind a prefix that is gone.
  // REQUIRES: somebody holds the blocks; `text` is as long as that.
  void Extend(const PrefixText& text, absl::Span<const BlockId> blocks,
              CachedPrefix* prefix);
  // The last block of `prefix`; none when it is empty, or gone.
  BlockId EndOf(const CachedPrefix& prefix) const;
  // An entry of an earlier life, behind that of block `before`, if any. False:
  // there is one of its name.
  // REQUIRES: somebody else holds `block` and `before`; neither is another's.
  bool Restore(BlockId block, BlockId before, absl::string_view salt,
               absl::Span<const TokenId> tokens);

  // Whether there is an entry of this name.
  bool Contains(const Hash128& name) const { return index_.contains(name); }

  // Forgets everything: what it has cannot be trusted. Sequences under way go
  // on with the blocks they have, and what they matched does not come back.
  void Clear();

  bool enabled() const { return options_.enabled; }
  int32_t pool_size() const { return pool_->size(); }
  int32_t num_blocks() const { return static_cast<int32_t>(index_.size()); }
  // Entries evicted since the beginning.
  int64_t num_evictions() const { return num_evictions_; }

  // Which entries come and go is written there from now on, too, until it is
  // taken away. The journal outlives the cache, or is taken away first.
  void AddJournal(PrefixJournal* journal) { journals_.push_back(journal); }
  void RemoveJournal(PrefixJournal* journal) { std::erase(journals_, journal); }
  // Appends the names of entries of blocks from `from` on: at most `most`, of
  // at most so many blocks times eight. Returns the block to go on with, or the
  // pool's size when there are no more.
  BlockId AppendNames(BlockId from, size_t most,
                      std::vector<Hash128>* names) const;

  // As in BlockKeeper; the pool calls them.
  void OnShared(BlockId block) override;
  void OnUnshared(BlockId block) override;
  int32_t num_evictable() const override { return num_idle_; }
  void EvictOne() override;

  // One entry, for tests.
  struct Content {
    BlockId block = kNoBlock;
    BlockId before = kNoBlock;
    absl::Span<const TokenId> tokens;
    // Of a first one; empty behind it.
    absl::string_view salt;
    // Which entry it is: no two are the same.
    uint64_t number = 0;
  };
  // All of them. Takes time in the pool's size.
  std::vector<Content> Contents() const;

  // CHECK-fails when an invariant is broken. Takes time in the pool's size.
  void CheckInvariants() const;

 private:
  // The entry of a block; entries are found by their block.
  struct Entry {
    uint64_t number = 0;  // 0: none
    Hash128 hash;
    BlockId before = kNoBlock;  // the block before, none for a first one
    bool shared = false;        // others than the cache hold the block
    int32_t held_behind = 0;    // entries right behind it that are held
    // Of the sequences that may share a first block; null: the empty one, and
    // in entries behind others.
    std::unique_ptr<const std::string> salt;
    // Neighbours in the list of idle entries.
    BlockId longer_idle = kNoBlock;
    BlockId shorter_idle = kNoBlock;

    bool held() const { return shared || held_behind > 0; }
    absl::string_view salt_text() const {
      return salt == nullptr ? absl::string_view() : *salt;
    }
  };

  absl::Span<const TokenId> TokensOf(BlockId block) const;
  absl::Span<const TokenId> TokensOf(const PrefixText& text,
                                     int32_t index) const;
  // The blocks of the longest prefix that is here, and its hash.
  std::vector<BlockId> FindPrefix(const PrefixText& text, Hash128* hash) const;
  // The note of that prefix.
  CachedPrefix NoteOf(absl::Span<const BlockId> blocks,
                      const Hash128& hash) const;
  // The entry of this name; none, or another one of the same hash: kNoBlock.
  // Only a first block, with none before it, is asked for its salt.
  BlockId Find(const Hash128& hash, BlockId before, absl::string_view salt,
               absl::Span<const TokenId> tokens) const;
  // Where the sequence stands; false: that entry is gone.
  bool FindEnd(const CachedPrefix& prefix, BlockId* at, Hash128* hash) const;
  void Add(BlockId block, const Hash128& hash, BlockId before,
           absl::string_view salt, absl::Span<const TokenId> tokens);
  // One entry more, or less, right behind `block` is held; both go on towards
  // the first block as far as that changes who is idle.
  void AddHeldBehind(BlockId block);
  void RemoveHeldBehind(BlockId block);
  void AddToIdle(BlockId block);
  void TakeFromIdle(BlockId block);

  const PrefixCacheOptions options_;
  BlockPool* const pool_;

  std::vector<Entry> entries_;   // by block
  std::vector<TokenId> tokens_;  // by block, block_size each
  absl::flat_hash_map<Hash128, BlockId> index_;
  BlockId longest_idle_ = kNoBlock;
  BlockId shortest_idle_ = kNoBlock;
  int32_t num_idle_ = 0;
  uint64_t last_number_ = 0;
  int64_t num_evictions_ = 0;
  std::vector<PrefixJournal*> journals_;
};

}  // namespace baton::scheduling
