#include "scheduling/slot_set.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/log.h"

namespace baton::scheduling {
namespace {

constexpr size_t kMinMembers = 8;
// An array in the pool, its place in the list of free ones, and what malloc
// keeps of it.
constexpr int64_t kPerLarge =
    sizeof(std::vector<Slot>) + 2 * sizeof(uint32_t) + 16;

int64_t BytesOf(size_t capacity) {
  return static_cast<int64_t>(capacity * sizeof(Slot));
}

}  // namespace

bool SlotSetPool::Reserve(Slots* slots, size_t capacity, int64_t most_bytes) {
  // While it grows, both arrays are there.
  if (BytesOf(capacity) > most_bytes) return false;
  Slots moved;
  moved.reserve(capacity);
  moved.assign(slots->begin(), slots->end());
  bytes_ += BytesOf(moved.capacity()) - BytesOf(slots->capacity());
  *slots = std::move(moved);
  return true;
}

bool SlotSetPool::MakeLarge(SlotSet* set, int64_t most_bytes) {
  uint32_t place = 0;
  if (free_.empty()) {
    if (BytesOf(kMinMembers) + kPerLarge > most_bytes) return false;
    place = static_cast<uint32_t>(large_.size());
    large_.emplace_back();
    bytes_ += kPerLarge;
  } else {
    if (BytesOf(kMinMembers) > most_bytes) return false;
    place = free_.back();
    free_.pop_back();
  }
  Slots* const slots = &large_[place];
  CHECK(Reserve(slots, kMinMembers, most_bytes));
  slots->assign(set->slots_.begin(), set->slots_.end());
  set->size_ = kMaxSlots;
  set->slots_ = {static_cast<Slot>(place), static_cast<Slot>(place >> 16), 0};
  return true;
}

void SlotSetPool::MakeSmall(SlotSet* set) {
  const uint32_t place = set->place();
  Slots slots;
  slots.swap(large_[place]);
  bytes_ -= BytesOf(slots.capacity());
  free_.push_back(place);
  set->size_ = static_cast<Slot>(slots.size());
  set->slots_ = {};
  std::copy(slots.begin(), slots.end(), set->slots_.begin());
}

SlotSetPool::Added SlotSetPool::Add(SlotSet* set, Slot slot,
                                    int64_t most_bytes) {
  CHECK_LT(slot, kMaxSlots);
  const absl::Span<const Slot> members = View(*set);
  const auto at = std::lower_bound(members.begin(), members.end(), slot);
  if (at != members.end() && *at == slot) return Added::kThere;
  const auto offset = at - members.begin();
  if (!set->large() && set->size_ < set->slots_.size()) {
    const auto to = set->slots_.begin() + offset;
    std::copy_backward(to, set->slots_.begin() + set->size_,
                       set->slots_.begin() + set->size_ + 1);
    *to = slot;
    ++set->size_;
    return Added::kYes;
  }
  if (!set->large() && !MakeLarge(set, most_bytes)) return Added::kNoRoom;
  Slots* const slots = &large_[set->place()];
  if (slots->size() == slots->capacity() &&
      !Reserve(slots, 2 * slots->capacity(), most_bytes)) {
    return Added::kNoRoom;
  }
  slots->insert(slots->begin() + offset, slot);
  return Added::kYes;
}

bool SlotSetPool::Remove(SlotSet* set, Slot slot) {
  const absl::Span<const Slot> members = View(*set);
  const auto at = std::lower_bound(members.begin(), members.end(), slot);
  if (at == members.end() || *at != slot) return false;
  const auto offset = at - members.begin();
  if (!set->large()) {
    const auto from = set->slots_.begin() + offset;
    std::copy(from + 1, set->slots_.begin() + set->size_, from);
    set->slots_[--set->size_] = 0;
    return true;
  }
  Slots* const slots = &large_[set->place()];
  slots->erase(slots->begin() + offset);
  if (slots->size() <= set->slots_.size()) {
    MakeSmall(set);
  } else if (slots->size() < slots->capacity() / 4) {
    // Smaller than what is given back at once: there is room.
    CHECK(Reserve(slots, slots->capacity() / 2, BytesOf(slots->capacity())));
  }
  return true;
}

bool SlotSetPool::Contains(const SlotSet& whole, const SlotSet& part) const {
  const absl::Span<const Slot> all = View(whole);
  const absl::Span<const Slot> some = View(part);
  if (some.size() > all.size()) return false;
  if (some.size() == all.size()) return some == all;
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

}  // namespace baton::scheduling
