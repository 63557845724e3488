// Tells the routers what is in this worker's prefix cache, or stored besides
// (kv_offload.h), without a difference: first everything, then what comes and
// goes, so that placement knows who holds what.
//
// At most every 100 ms, or when much has changed, in messages of at most
// kMaxNames names, and not so many at once that a step waits for them. What a
// router is told of first, a message with `reset` and then all names, block by
// block, goes out in the same pieces, with changes in between; nothing is
// copied for it. A router that does not keep up is told nothing for a while,
// and everything from the beginning then: nothing is kept for it meanwhile.
//
// Used by the worker's loop thread only. Dies before the cache.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "absl/time/time.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "scheduling/prefix_cache.h"
#include "scheduling/prefix_journal.h"
#include "worker/control_outbox.h"

namespace baton::worker {

class PrefixFeed final {
 public:
  // Names in a message: 64 KiB.
  static constexpr int kMaxNames = 4096;

  // The outbox outlives the feed. `stored` may be null.
  PrefixFeed(scheduling::PrefixCache* cache, ControlOutbox* outbox,
             scheduling::PrefixCache* stored = nullptr);
  ~PrefixFeed();
  PrefixFeed(const PrefixFeed&) = delete;
  PrefixFeed& operator=(const PrefixFeed&) = delete;

  // A router said hello, or is gone.
  void AddRouter(SessionId session);
  void RemoveRouter(SessionId session) { routers_.erase(session); }

  // Sends what is due. Call it once in each turn.
  void Flush(absl::Time now);

 private:
  struct Router {
    // It is to forget what it knows before it is told more.
    bool reset = true;
    // Blocks before this one it has been told of: first those of the cache,
    // then those that are stored.
    BlockId next = 0;
  };

  bool Due(absl::Time now) const;
  bool ToldAll() const;
  void Tell(SessionId session,
            const scheduling::PrefixJournal::Changes& changes);
  void TellMore(SessionId session, Router* router);

  // Where what is told of next ends.
  BlockId end() const {
    return cache_->pool_size() +
           (stored_ == nullptr ? 0 : stored_->pool_size());
  }
  // What changed in either of them since the last call, but for what is still
  // in the other.
  scheduling::PrefixJournal::Changes TakeChanges();
  BlockId AppendNames(BlockId from, std::vector<Hash128>* names) const;

  scheduling::PrefixCache* const cache_;
  scheduling::PrefixCache* const stored_;
  ControlOutbox* const outbox_;
  scheduling::PrefixJournal journal_;
  scheduling::PrefixJournal stored_journal_;
  std::map<SessionId, Router> routers_;
  absl::Time last_told_at_ = absl::InfinitePast();
};

}  // namespace baton::worker
