// What changed in a prefix cache since someone last asked, for those who keep a
// list of what it has. Bounded: when more changes than fit come in between,
// they are forgotten, and the one who asks is told to look at everything again.
//
// Used by the thread that owns the cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/stable_hash.h"

namespace baton::scheduling {

class PrefixJournal final {
 public:
  // In the order in which they are to be applied: `removed` first. A block that
  // went and came back is in both, one that came and went may be in `removed`.
  struct Changes {
    // Nothing is known of what changed; the lists are empty.
    bool lost = false;
    std::vector<Hash128> removed;
    std::vector<Hash128> stored;

    bool empty() const { return !lost && removed.empty() && stored.empty(); }
  };

  explicit PrefixJournal(size_t max_changes) : max_changes_(max_changes) {}

  void Stored(const Hash128& name);
  void Removed(const Hash128& name);
  // Everything changed at once.
  void Lose();

  bool empty() const { return changes_.empty(); }
  size_t size() const {
    return changes_.removed.size() + changes_.stored.size();
  }
  // What changed since the last call.
  Changes Take();

 private:
  bool HasRoom();

  const size_t max_changes_;
  Changes changes_;
  // Where a name is in `stored`.
  absl::flat_hash_map<Hash128, size_t> stored_at_;
};

}  // namespace baton::scheduling
