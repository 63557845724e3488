// The prefix cache of a simulated worker: what scheduling::PrefixCache does,
// for prompts without tokens. Entries are those of prefix_chains.h, larger than
// KV blocks as a rule; nothing but prompts enters (a trace does not tell what
// answers are).
//
// A sequence holds the entries that it found when it came, and those that it
// computed. The others are idle, and lie in the worker's free blocks: the
// longest idle ones go first, and none before those behind it in a prompt.
//
// The worker counts for each of its sequences all blocks that it would need
// alone; shared_blocks() is by how much that is too many (where entries are no
// whole blocks, to less than a block for each sequence).
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/prefix_chains.h"
#include "scheduling/prefix_journal.h"

namespace baton::planner {

struct PrefixCacheSimulationOptions {
  // Tokens of the worker's KV blocks.
  int32_t block_size = 16;
  // Most tokens in the cache, held ones included.
  int64_t max_tokens = 0;
};

class PrefixCacheSimulation final {
 public:
  // `chains` outlives this.
  PrefixCacheSimulation(const PrefixCacheSimulationOptions& options,
                        const PrefixChains* chains);

  // Tokens of the request's prompt that are here, of at most so many: whole
  // blocks, as a worker shares them.
  int32_t CachedTokens(uint32_t request, int32_t most) const;
  // What shared_blocks() would be with Hold.
  int32_t SharedBlocksWith(uint32_t request, int32_t most) const;
  // Holds what CachedTokens finds, and returns that. REQUIRES: the request
  // holds nothing here.
  int32_t Hold(uint32_t request, int32_t most);
  // Its whole prompt is computed, or came: it enters, and is held.
  void Insert(uint32_t request);
  // The sequence is gone, if it was here.
  void Release(uint32_t request);
  // Evicts what does not fit in so many blocks, which no sequence counts.
  void Fit(int32_t uncounted_blocks);

  // May be below zero: of what several computed at once, each has its own, and
  // all hold one.
  int32_t shared_blocks() const { return BlocksOf(num_shared_ - num_held_); }

  int64_t num_entries() const { return static_cast<int64_t>(places_.size()); }
  int64_t num_idle() const { return num_entries() - num_held_; }
  // What came and went since the last call; an entry's name is its number.
  scheduling::PrefixJournal::Changes TakeChanges() { return journal_.Take(); }

 private:
  static constexpr uint32_t kNone = UINT32_MAX;

  struct Entry {
    uint32_t number = 0;
    int32_t holders = 0;
    // Neighbours in the list of idle ones.
    uint32_t longer_idle = kNone;
    uint32_t shorter_idle = kNone;
  };
  // What a sequence holds: the first so many entries of its chain. Of these,
  // `shared` lie in no blocks but the cache's.
  struct Held {
    int32_t entries = 0;
    int32_t shared = 0;
  };

  int32_t BlocksOf(int64_t entries) const;
  // Tokens of the blocks that so many entries fill.
  int32_t InBlocks(int32_t entries) const;
  // How many entries of the request's chain are here.
  int32_t Find(uint32_t request, int32_t most) const;
  void HoldOne(uint32_t place);
  void AddToIdle(uint32_t place);
  void TakeFromIdle(uint32_t place);
  void EvictOne();

  const PrefixCacheSimulationOptions options_;
  const PrefixChains* const chains_;
  const int64_t entry_tokens_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> free_places_;
  // By an entry's number.
  absl::flat_hash_map<uint32_t, uint32_t> places_;
  uint32_t longest_idle_ = kNone;
  uint32_t shortest_idle_ = kNone;
  absl::flat_hash_map<uint32_t, Held> held_;  // by request
  int64_t num_held_ = 0;                      // entries
  int64_t num_shared_ = 0;                    // over all of held_
  scheduling::PrefixJournal journal_;
};

}  // namespace baton::planner
