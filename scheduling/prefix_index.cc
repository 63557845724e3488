#include "scheduling/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/hash/hash.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

// A part starts with so many entries, and has at most so many bytes when the
// whole is full: what growing one part takes at a time.
constexpr uint32_t kMinCapacity = 16;
constexpr int64_t kPartBytes = 64 << 10;
constexpr int64_t kMaxParts = 4096;
// Entries to look at for each block that comes, while there is something to
// clean up.
constexpr int64_t kCleanedPerBlock = 8;
// And in each turn; takes some 20 us.
constexpr int64_t kCleanedPerTurn = 8192;
// Names that are on their way from memory while the ones before are handled.
constexpr size_t kAhead = 12;
// Members of two sets that are compared at a time.
constexpr size_t kStride = 32;

size_t NumParts(int64_t max_bytes) {
  const int64_t parts =
      std::clamp<int64_t>(max_bytes / kPartBytes, 1, kMaxParts);
  return std::bit_floor(static_cast<size_t>(parts));
}

// Another one in each process: nobody can choose names that crowd together.
uint64_t HashOfKey(uint64_t key) { return absl::HashOf(key); }

}  // namespace

PrefixIndex::PrefixIndex(const Options& options)
    : max_bytes_(options.max_bytes), parts_(NumParts(options.max_bytes)) {
  CHECK_GT(max_bytes_, 0);
  own_bytes_ = static_cast<int64_t>(parts_.size() * sizeof(Part));
}

uint32_t PrefixIndex::PlaceOf(const Part& part, uint64_t key) {
  return static_cast<uint32_t>(HashOfKey(key)) & (part.capacity - 1);
}

void PrefixIndex::Prefetch(const Hash128& name) {
  const uint64_t key = KeyOf(name);
  const Part& part = *PartOf(HashOfKey(key));
  if (part.capacity == 0) return;
  __builtin_prefetch(&part.entries[PlaceOf(part, key)]);
}

PrefixIndex::Entry* PrefixIndex::Find(uint64_t key) {
  Part& part = *PartOf(HashOfKey(key));
  if (part.capacity == 0) return nullptr;
  for (uint32_t place = PlaceOf(part, key);
       !part.entries[place].workers.empty();
       place = (place + 1) & (part.capacity - 1)) {
    if (part.entries[place].key == key) return &part.entries[place];
  }
  return nullptr;
}

PrefixIndex::Part* PrefixIndex::PartWithRoom(uint64_t key) {
  Part* const part = PartOf(HashOfKey(key));
  const bool crowded =
      int64_t{part->size} + 1 > int64_t{part->capacity} / 4 * 3;
  return crowded && !Grow(part) ? nullptr : part;
}

bool PrefixIndex::Grow(Part* part) {
  const uint32_t capacity =
      part->capacity == 0 ? kMinCapacity : 2 * part->capacity;
  const auto bytes = static_cast<int64_t>(capacity * sizeof(Entry));
  // Both are there for a moment.
  if (bytes > Room()) return false;
  Part grown;
  grown.entries = std::make_unique<Entry[]>(capacity);
  grown.capacity = capacity;
  grown.size = part->size;
  for (uint32_t i = 0; i < part->capacity; ++i) {
    const Entry& entry = part->entries[i];
    if (entry.workers.empty()) continue;
    uint32_t place = PlaceOf(grown, entry.key);
    while (!grown.entries[place].workers.empty()) {
      place = (place + 1) & (capacity - 1);
    }
    grown.entries[place] = entry;
  }
  own_bytes_ += bytes - static_cast<int64_t>(part->capacity * sizeof(Entry));
  *part = std::move(grown);
  return true;
}

void PrefixIndex::Erase(Part* part, uint32_t place) {
  const uint32_t mask = part->capacity - 1;
  // What follows closes up, as far as it may stand there.
  for (uint32_t next = (place + 1) & mask; !part->entries[next].workers.empty();
       next = (next + 1) & mask) {
    const uint32_t wanted = PlaceOf(*part, part->entries[next].key);
    if (((next - wanted) & mask) < ((next - place) & mask)) continue;
    part->entries[place] = part->entries[next];
    place = next;
  }
  part->entries[place] = Entry();
  --part->size;
  --num_blocks_;
}

Slot PrefixIndex::SlotOf(WorkerId worker) const {
  const auto at = std::lower_bound(
      live_.begin(), live_.end(), worker,
      [](const auto& entry, WorkerId id) { return entry.first < id; });
  return at == live_.end() || at->first != worker ? kMaxSlots : at->second;
}

Slot PrefixIndex::GiveSlot(WorkerId worker) {
  Slot slot = kMaxSlots;
  if (!free_slots_.empty()) {
    slot = free_slots_.back();
    free_slots_.pop_back();
  } else if (held_.size() < kMaxSlots) {
    slot = static_cast<Slot>(held_.size());
    held_.push_back(0);
    dead_.push_back(false);
    blocks_.push_back(0);
  } else {
    return kMaxSlots;
  }
  const auto at = std::lower_bound(
      live_.begin(), live_.end(), worker,
      [](const auto& entry, WorkerId id) { return entry.first < id; });
  live_.insert(at, {worker, slot});
  return slot;
}

void PrefixIndex::Store(WorkerId worker, absl::Span<const Hash128> names) {
  if (names.empty()) return;
  Slot slot = SlotOf(worker);
  if (slot == kMaxSlots) slot = GiveSlot(worker);
  if (slot == kMaxSlots) {
    num_dropped_ += static_cast<int64_t>(names.size());
    return;
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (i + kAhead < names.size()) Prefetch(names[i + kAhead]);
    if (!StoreOne(slot, KeyOf(names[i]))) ++num_dropped_;
  }
  if (num_dead_ == 0) return;
  to_clean_ += kCleanedPerBlock * static_cast<int64_t>(names.size());
  CleanSome();
}

bool PrefixIndex::StoreOne(Slot slot, uint64_t key) {
  Entry* entry = Find(key);
  const bool is_new = entry == nullptr;
  if (is_new) {
    Part* const part = PartWithRoom(key);
    if (part == nullptr) return false;
    uint32_t place = PlaceOf(*part, key);
    while (!part->entries[place].workers.empty()) {
      place = (place + 1) & (part->capacity - 1);
    }
    entry = &part->entries[place];
    entry->key = key;
    ++part->size;
    ++num_blocks_;
  }
  // The first three workers always have room.
  switch (sets_.Add(&entry->workers, slot, Room())) {
    case SlotSetPool::Added::kYes:
      ++held_[slot];
      ++num_held_;
      return true;
    case SlotSetPool::Added::kThere:
      return true;
    case SlotSetPool::Added::kNoRoom:
      return false;
  }
  return false;
}

void PrefixIndex::Remove(WorkerId worker, absl::Span<const Hash128> names) {
  const Slot slot = SlotOf(worker);
  if (slot == kMaxSlots) return;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i + kAhead < names.size()) Prefetch(names[i + kAhead]);
    Entry* const entry = Find(KeyOf(names[i]));
    if (entry == nullptr || !sets_.Remove(&entry->workers, slot)) continue;
    --held_[slot];
    --num_held_;
    if (!entry->workers.empty()) continue;
    Part* const part = PartOf(HashOfKey(entry->key));
    Erase(part, static_cast<uint32_t>(entry - part->entries.get()));
  }
}

void PrefixIndex::Forget(WorkerId worker) {
  const Slot slot = SlotOf(worker);
  if (slot == kMaxSlots) return;
  std::erase(live_, std::pair(worker, slot));
  if (held_[slot] == 0) {
    free_slots_.push_back(slot);
    return;
  }
  dead_[slot] = true;
  ++num_dead_;
}

void PrefixIndex::CountLess(Slot slot) {
  --num_held_;
  if (--held_[slot] > 0) return;
  dead_[slot] = false;
  --num_dead_;
  free_slots_.push_back(slot);
}

void PrefixIndex::Clean() {
  to_clean_ += kCleanedPerTurn;
  CleanSome();
}

void PrefixIndex::CleanSome() {
  while (to_clean_ > 0 && num_dead_ > 0) {
    Part* const part = &parts_[next_to_clean_];
    next_to_clean_ = (next_to_clean_ + 1) % parts_.size();
    // An empty part counts, too.
    to_clean_ -= std::max<int64_t>(part->capacity, 1);
    CleanPart(part);
  }
  if (num_dead_ == 0) to_clean_ = 0;
}

void PrefixIndex::CleanPart(Part* part) {
  for (uint32_t place = 0; place < part->capacity;) {
    Entry* const entry = &part->entries[place];
    if (entry->workers.empty()) {
      ++place;
      continue;
    }
    const absl::Span<const Slot> members = sets_.View(entry->workers);
    for (size_t i = members.size(); i > 0; --i) {
      // Those before it stay where they are; View changes with the set.
      const Slot slot = sets_.View(entry->workers)[i - 1];
      if (!dead_[slot]) continue;
      sets_.Remove(&entry->workers, slot);
      CountLess(slot);
    }
    if (entry->workers.empty()) {
      Erase(part, place);  // another entry may be here now
    } else {
      ++place;
    }
  }
}

SlotSet PrefixIndex::WorkersOf(const Hash128& name) {
  ++num_lookups_;
  const Entry* const entry = Find(KeyOf(name));
  return entry == nullptr ? SlotSet() : entry->workers;
}

void PrefixIndex::Raise(const SlotSet& workers, const SlotSet& further,
                        int32_t blocks) {
  const absl::Span<const Slot> all = sets_.View(workers);
  const absl::Span<const Slot> others = sets_.View(further);
  size_t other = 0;
  for (size_t i = 0; i < all.size();) {
    // Large sets are alike for long stretches.
    while (i + kStride <= all.size() && other + kStride <= others.size() &&
           std::memcmp(&all[i], &others[other], kStride * sizeof(Slot)) == 0) {
      i += kStride;
      other += kStride;
    }
    if (i == all.size()) return;
    while (other < others.size() && others[other] < all[i]) ++other;
    if (other < others.size() && others[other] == all[i]) {
      ++i;
      ++other;
      continue;
    }
    int32_t& raised = blocks_[all[i++]];
    if (raised == 0) raised_.push_back(all[i - 1]);
    raised = std::max(raised, blocks);
  }
}

void PrefixIndex::Narrow(const Stretch& stretch) {
  // Whoever has the first block has the last one, too, or more.
  if (sets_.Contains(stretch.at_last, stretch.at_first)) return;
  if (stretch.last == stretch.first + 1) {
    Raise(stretch.at_first, stretch.at_last, stretch.last);
  } else {
    narrower_.push_back(stretch);
  }
}

void PrefixIndex::Match(absl::Span<const Hash128> chain,
                        std::vector<PrefixMatch>* matches) {
  matches->clear();
  if (chain.empty() || live_.empty()) return;
  const auto end = static_cast<int32_t>(chain.size()) - 1;
  const SlotSet at_first = WorkersOf(chain.front());
  if (at_first.empty()) return;
  const SlotSet at_end = end == 0 ? at_first : WorkersOf(chain.back());
  Raise(at_end, SlotSet(), end + 1);
  narrower_.clear();
  if (end > 0) Narrow({0, end, at_first, at_end});
  while (!narrower_.empty()) {
    stretches_.swap(narrower_);
    narrower_.clear();
    const auto middle = [](const Stretch& s) { return (s.first + s.last) / 2; };
    // All at once from memory.
    for (const Stretch& stretch : stretches_) Prefetch(chain[middle(stretch)]);
    for (const Stretch& stretch : stretches_) {
      const int32_t at = middle(stretch);
      const SlotSet workers = WorkersOf(chain[at]);
      Narrow({stretch.first, at, stretch.at_first, workers});
      Narrow({at, stretch.last, workers, stretch.at_last});
    }
  }
  for (const auto& [worker, slot] : live_) {
    if (blocks_[slot] > 0) matches->push_back({worker, blocks_[slot]});
  }
  for (Slot slot : raised_) blocks_[slot] = 0;
  raised_.clear();
}

void PrefixIndex::CheckInvariants() const {
  std::vector<int64_t> held(held_.size(), 0);
  int64_t num_blocks = 0;
  auto bytes = static_cast<int64_t>(parts_.size() * sizeof(Part));
  for (const Part& part : parts_) {
    bytes += static_cast<int64_t>(part.capacity * sizeof(Entry));
    uint32_t size = 0;
    for (uint32_t i = 0; i < part.capacity; ++i) {
      const Entry& entry = part.entries[i];
      if (entry.workers.empty()) continue;
      ++size;
      for (Slot slot : sets_.View(entry.workers)) ++held.at(slot);
      CHECK_EQ(const_cast<PrefixIndex*>(this)->Find(entry.key), &entry);
    }
    CHECK_EQ(size, part.size);
    num_blocks += size;
  }
  CHECK_EQ(num_blocks, num_blocks_);
  CHECK_EQ(bytes, own_bytes_);
  CHECK_LE(this->bytes(), max_bytes_);
  int64_t num_held = 0;
  for (size_t slot = 0; slot < held.size(); ++slot) {
    CHECK_EQ(held[slot], held_[slot]) << "slot " << slot;
    num_held += held[slot];
    CHECK_EQ(blocks_[slot], 0);
  }
  CHECK_EQ(num_held, num_held_);
  for (Slot slot : free_slots_) CHECK(held_[slot] == 0 && !dead_[slot]);
  CHECK_EQ(std::count(dead_.begin(), dead_.end(), true), num_dead_);
  CHECK_EQ(live_.size() + free_slots_.size() + static_cast<size_t>(num_dead_),
           held_.size());
}

}  // namespace baton::scheduling
