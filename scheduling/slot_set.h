// Very many small sets of small numbers, eight bytes each: up to three members
// lie in the set itself, more in a sorted array of its pool. For the prefix
// index, where most sets have one or two members and a few have a thousand.
//
// Used by one thread. Numbers are below kMaxSlots.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "absl/types/span.h"

namespace baton::scheduling {

using Slot = uint16_t;
// Of a set that lies in the pool, the size is this.
inline constexpr Slot kMaxSlots = 0xffff;

// A value of eight bytes. One that is not empty belongs to a pool, and is
// moved, not copied, when it changes hands.
class SlotSet final {
 public:
  bool empty() const { return size_ == 0; }

 private:
  friend class SlotSetPool;

  bool large() const { return size_ == kMaxSlots; }
  uint32_t place() const {
    return uint32_t{slots_[0]} | uint32_t{slots_[1]} << 16;
  }

  Slot size_ = 0;
  // The members, sorted; of a large set, its place in the pool.
  std::array<Slot, 3> slots_{};
};
static_assert(sizeof(SlotSet) == 8);

class SlotSetPool final {
 public:
  enum class Added { kYes, kThere, kNoRoom };

  // kNoRoom when the pool would grow by more than `most_bytes`; the set is then
  // as it was.
  Added Add(SlotSet* set, Slot slot, int64_t most_bytes);
  // Whether it was a member.
  bool Remove(SlotSet* set, Slot slot);
  // The members, sorted. Valid until a set of the pool changes.
  absl::Span<const Slot> View(const SlotSet& set) const {
    if (!set.large()) return absl::MakeConstSpan(set.slots_.data(), set.size_);
    return large_[set.place()];
  }
  // Whether each member of `part` is one of `whole`.
  bool Contains(const SlotSet& whole, const SlotSet& part) const;

  // What the pool takes of memory, besides the sets and what malloc rounds up.
  int64_t bytes() const { return bytes_; }

 private:
  using Slots = std::vector<Slot>;

  bool Reserve(Slots* slots, size_t capacity, int64_t most_bytes);
  bool MakeLarge(SlotSet* set, int64_t most_bytes);
  void MakeSmall(SlotSet* set);

  std::deque<Slots> large_;
  std::vector<uint32_t> free_;  // places in large_
  int64_t bytes_ = 0;
};

}  // namespace baton::scheduling
