#include "scheduling/prefix_journal.h"

#include <utility>

namespace baton::scheduling {

bool PrefixJournal::HasRoom() {
  if (changes_.lost) return false;
  if (size() < max_changes_) return true;
  Lose();
  return false;
}

void PrefixJournal::Stored(const Hash128& name) {
  if (!HasRoom()) return;
  if (!stored_at_.emplace(name, changes_.stored.size()).second) return;
  changes_.stored.push_back(name);
}

void PrefixJournal::Removed(const Hash128& name) {
  if (!HasRoom()) return;
  // It may have been there before, too: that it came does not undo this.
  changes_.removed.push_back(name);
  const auto it = stored_at_.find(name);
  if (it == stored_at_.end()) return;
  // The last one takes its place.
  const size_t place = it->second;
  stored_at_.erase(it);
  if (place + 1 < changes_.stored.size()) {
    changes_.stored[place] = changes_.stored.back();
    stored_at_[changes_.stored[place]] = place;
  }
  changes_.stored.pop_back();
}

void PrefixJournal::Lose() {
  changes_ = Changes();
  changes_.lost = true;
  stored_at_.clear();
}

PrefixJournal::Changes PrefixJournal::Take() {
  stored_at_.clear();
  return std::exchange(changes_, Changes());
}

}  // namespace baton::scheduling
