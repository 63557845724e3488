// The attempts that a worker's loop knows, found by whoever speaks of them: a
// router (by key), the engine (by sequence), the hand-off (by transfer).
//
// Used by the worker's loop thread only. `Attempt` has members `key`
// (AttemptKey), `sequence` (unique_ptr<scheduling::Sequence>) and `transfer`
// (optional<TransferId>, changed through this table only).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/ids.h"
#include "common/log.h"
#include "worker/publisher.h"

namespace baton::worker {

template <typename Attempt>
class AttemptTable final {
 public:
  // REQUIRES: neither key nor sequence is in the table.
  Attempt* Add(std::unique_ptr<Attempt> attempt) {
    Attempt* added = attempt.get();
    CHECK(by_key_.emplace(added->key, added).second);
    CHECK(attempts_.emplace(added->sequence->id(), std::move(attempt)).second);
    return added;
  }

  Attempt* Find(const AttemptKey& key) const { return Get(by_key_, key); }
  Attempt* Find(TransferId transfer) const {
    return Get(by_transfer_, transfer);
  }
  Attempt* Find(SequenceId sequence) const {
    const auto it = attempts_.find(sequence);
    return it == attempts_.end() ? nullptr : it->second.get();
  }

  // REQUIRES: the attempt has no transfer yet, and no other one has this.
  void SetTransfer(Attempt* attempt, TransferId transfer) {
    CHECK(!attempt->transfer.has_value());
    attempt->transfer = transfer;
    CHECK(by_transfer_.emplace(transfer, attempt).second);
  }

  // The attempt needs its transfer no more.
  void ClearTransfer(Attempt* attempt) {
    by_transfer_.erase(*attempt->transfer);
    attempt->transfer.reset();
  }

  // Whether any is computed with that adapter (PlannedSequence::adapter).
  bool Uses(int32_t adapter) const {
    return std::any_of(attempts_.begin(), attempts_.end(),
                       [adapter](const auto& entry) {
                         return entry.second->sequence->adapter() == adapter;
                       });
  }

  // Takes the attempt out.
  std::unique_ptr<Attempt> Remove(Attempt* attempt) {
    by_key_.erase(attempt->key);
    if (attempt->transfer.has_value()) by_transfer_.erase(*attempt->transfer);
    auto node = attempts_.extract(attempt->sequence->id());
    CHECK(!node.empty());
    return std::move(node.mapped());
  }

  // In the order in which they came; the table may be changed meanwhile.
  std::vector<Attempt*> All() const {
    std::vector<Attempt*> all;
    all.reserve(attempts_.size());
    for (const auto& [id, attempt] : attempts_) all.push_back(attempt.get());
    return all;
  }

  int size() const { return static_cast<int>(attempts_.size()); }
  bool empty() const { return attempts_.empty(); }

 private:
  template <typename Map, typename Key>
  static Attempt* Get(const Map& map, const Key& key) {
    const auto it = map.find(key);
    return it == map.end() ? nullptr : it->second;
  }

  std::map<SequenceId, std::unique_ptr<Attempt>> attempts_;
  std::map<AttemptKey, Attempt*> by_key_;
  std::map<TransferId, Attempt*> by_transfer_;
};

}  // namespace baton::worker
