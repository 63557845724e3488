// Which workers hold which KV blocks, as far as they have said: from the names
// of a prompt's blocks (block_hash.h), how much of it each worker has in its
// prefix cache. What placement asks before it chooses.
//
// All of it are hints. News of a worker may be late or lost, a name that found
// no room is not known, and of a name only 64 bits are kept; a wrong hint costs
// time, never an answer: workers compare tokens themselves.
//
// A worker that has a block has all before it in the same prefix
// (prefix_cache.h evicts none before those behind it). So where workers stop is
// found by halving, and a prompt of thousands of blocks takes few look-ups:
// about 13 for each place where some worker stops. Where that is not so,
// because news were lost, Match may say too little of a worker, or that it has
// blocks in between which it lacks.
//
// Memory: a table of 16 bytes for each block and its workers, filled up to
// three quarters (a block takes 21 to 43 bytes), and more for blocks that more
// than three workers have, 2 to 4 bytes for each. All of it stays within
// `max_bytes`, always: what finds no room is dropped and counted. It does not
// shrink. The table is in parts that grow one by one, so that no call takes
// long.
//
// Forget takes constant time: the worker's number is dead from then on, and its
// blocks are cleaned up as news come and with each Clean; the number is given
// out again when nothing has it any more. What was left behind is at most about
// a quarter of the table when workers come and go without end.
//
// Used by one thread (the router's loop).
//
// Invariants (CheckInvariants):
//   1. Each block in the table is where a look-up finds it, and has workers.
//   2. Of each number there are as many blocks as are counted, and none of a
//      number that is free.
//   3. The bytes that are counted are those that are there, within the bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "common/stable_hash.h"
#include "scheduling/placement.h"
#include "scheduling/slot_set.h"

namespace baton::scheduling {

// How many blocks of a prompt, from its beginning, a worker has.
struct PrefixMatch {
  WorkerId worker = kNoWorker;
  int32_t blocks = 0;

  friend bool operator==(const PrefixMatch&, const PrefixMatch&) = default;
};

class PrefixIndex final {
 public:
  struct Options {
    // Of the whole index, but for what malloc rounds up and a few bytes for
    // each worker.
    int64_t max_bytes = int64_t{256} << 20;
  };

  explicit PrefixIndex(const Options& options);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The worker has these blocks now, or has them no more.
  void Store(WorkerId worker, absl::Span<const Hash128> names);
  void Remove(WorkerId worker, absl::Span<const Hash128> names);
  // Nothing is known of the worker any more.
  void Forget(WorkerId worker);

  // The workers that have the beginning of a prompt whose blocks are these, by
  // worker id. `matches` is overwritten.
  void Match(absl::Span<const Hash128> chain,
             std::vector<PrefixMatch>* matches);

  // Cleans up a little of what Forget left behind.
  void Clean();

  // Blocks that some worker has, or that are to be cleaned up.
  int64_t num_blocks() const { return num_blocks_; }
  // Pairs of a block and a worker that has it.
  int64_t num_held() const { return num_held_; }
  // Such pairs that found no room, since the beginning.
  int64_t num_dropped() const { return num_dropped_; }
  int64_t bytes() const { return own_bytes_ + sets_.bytes(); }
  // Names looked up by Match since the beginning.
  int64_t num_lookups() const { return num_lookups_; }

  // CHECK-fails when an invariant is broken. Takes time in the table's size.
  void CheckInvariants() const;

 private:
  struct Entry {
    uint64_t key = 0;
    SlotSet workers;  // empty: no entry
  };
  // A hash table of its own: linear probing, a power of two of entries.
  struct Part {
    std::unique_ptr<Entry[]> entries;
    uint32_t capacity = 0;
    uint32_t size = 0;
  };
  // A stretch of a prompt in which workers stop.
  struct Stretch {
    int32_t first = 0;  // looked up
    int32_t last = 0;   // looked up
    SlotSet at_first;
    SlotSet at_last;
  };

  static uint64_t KeyOf(const Hash128& name) { return name.low; }
  Part* PartOf(uint64_t hash) {
    return &parts_[(hash >> 32) & (parts_.size() - 1)];
  }
  void Prefetch(const Hash128& name);
  Entry* Find(uint64_t key);
  Part* PartWithRoom(uint64_t key);
  bool Grow(Part* part);
  static uint32_t PlaceOf(const Part& part, uint64_t key);
  void Erase(Part* part, uint32_t place);
  int64_t Room() const { return max_bytes_ - bytes(); }

  // The number of a worker, kMaxSlots when it has none.
  Slot SlotOf(WorkerId worker) const;
  Slot GiveSlot(WorkerId worker);
  bool StoreOne(Slot slot, uint64_t key);
  void CountLess(Slot slot);
  void CleanSome();
  void CleanPart(Part* part);

  SlotSet WorkersOf(const Hash128& name);
  // Some workers stop between two blocks, the last of which may be right behind
  // the first.
  void Narrow(const Stretch& stretch);
  // Those of `workers` that are not in `further` have so many blocks, or more.
  void Raise(const SlotSet& workers, const SlotSet& further, int32_t blocks);

  const int64_t max_bytes_;
  std::vector<Part> parts_;  // a power of two
  SlotSetPool sets_;
  int64_t own_bytes_ = 0;  // parts and entries
  int64_t num_blocks_ = 0;
  int64_t num_held_ = 0;
  int64_t num_dropped_ = 0;
  int64_t num_lookups_ = 0;

  // By worker id, those that have a number.
  std::vector<std::pair<WorkerId, Slot>> live_;
  // By number: blocks that have it.
  std::vector<int64_t> held_;
  std::vector<bool> dead_;
  std::vector<Slot> free_slots_;
  int num_dead_ = 0;
  size_t next_to_clean_ = 0;  // part
  int64_t to_clean_ = 0;      // entries

  // Of Match, kept for their memory.
  std::vector<int32_t> blocks_;  // by number
  std::vector<Slot> raised_;
  std::vector<Stretch> stretches_;
  std::vector<Stretch> narrower_;
};

}  // namespace baton::scheduling
