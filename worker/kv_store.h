// Where KV blocks are kept outside of the engine's KV memory: a seam, so that
// the simulation has one without files or threads (worker/file_kv_store.h is
// the real one).
//
// It has a fixed number of *places*, of a block each, and knows nothing of what
// is worth keeping: whose place is free is the caller's business
// (worker/kv_offload.h). Of each block it keeps what a later process needs to
// find it again, where it can.
//
// Jobs run beside the caller and are done in any order, but for writes, which
// are done in the order in which they were given. Until a job is done, its
// blocks are in use: nobody writes to those that are written out, and nobody
// touches those that are read into.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "engine/kv_layout.h"

namespace baton::worker {

// A block in the store, by what it holds.
struct StoredBlock {
  BlockId place = 0;
  // No two that were ever stored have the same; later ones have higher ones.
  uint64_t stamp = 0;
  // The one before it; of a first one, no place (-1) and 0.
  BlockId before = -1;
  uint64_t before_stamp = 0;
  // Of a first one; at most kMaxSalt bytes.
  std::string salt;
  std::vector<TokenId> tokens;
};

class KvStore {
 public:
  // Of a salt's bytes (docs/adr/0017).
  static constexpr size_t kMaxSalt = 512;
  // Jobs of each kind that may be under way.
  static constexpr int kMaxJobs = 64;

  // One block of the memory that the store was made for, and its place.
  struct Copy {
    BlockId block = 0;
    BlockId place = 0;
  };
  struct Done {
    uint64_t job = 0;
    // The first so many blocks are there. Of a read, all before the first that
    // is not what was written; of a write, all or none.
    int32_t num_blocks = 0;
    std::string error;  // why not all
  };

  virtual ~KvStore() = default;

  virtual int32_t num_places() const = 0;

  // What an earlier process left, in the order of stamps; once.
  virtual std::vector<StoredBlock> TakeStored() = 0;

  // Writes blocks to their places, over what is there. `stored` says what they
  // hold, one for each. `job`: a number of the caller's.
  // REQUIRES: fewer than kMaxJobs are under way.
  virtual void Write(uint64_t job, std::vector<BlockId> blocks,
                     std::vector<StoredBlock> stored) = 0;
  virtual void Read(uint64_t job, std::vector<Copy> copies) = 0;

  // Jobs that are done, each once.
  virtual std::vector<Done> Poll() = 0;
  // Waits until there are some, at most so long.
  virtual void Await(absl::Duration most) = 0;

  // What was stored so far, writes under way included, is not to be found by a
  // later process.
  virtual void Forget() = 0;
};

}  // namespace baton::worker
