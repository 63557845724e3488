#include "planner/prefix_cache_simulation.h"

#include <algorithm>
#include <limits>

#include "absl/types/span.h"
#include "common/log.h"
#include "common/stable_hash.h"

namespace baton::planner {
namespace {

Hash128 NameOf(uint32_t number) { return {.low = number}; }

}  // namespace

PrefixCacheSimulation::PrefixCacheSimulation(
    const PrefixCacheSimulationOptions& options, const PrefixChains* chains)
    : options_(options),
      chains_(chains),
      entry_tokens_(chains->entry_tokens()),
      journal_(std::numeric_limits<size_t>::max()) {
  CHECK_GE(entry_tokens_, 1);
  CHECK_GE(options.block_size, 1);
}

int32_t PrefixCacheSimulation::BlocksOf(int64_t entries) const {
  const int64_t tokens = entries * entry_tokens_;
  const int64_t size = options_.block_size;
  // Rounded down, below zero, too.
  return static_cast<int32_t>(tokens >= 0 ? tokens / size
                                          : -((-tokens + size - 1) / size));
}

int32_t PrefixCacheSimulation::InBlocks(int32_t entries) const {
  return BlocksOf(entries) * options_.block_size;
}

int32_t PrefixCacheSimulation::Find(uint32_t request, int32_t most) const {
  const absl::Span<const uint32_t> chain = chains_->Of(request);
  const auto end =
      std::min(chain.size(), static_cast<size_t>(most / entry_tokens_));
  size_t found = 0;
  while (found < end && places_.contains(chain[found])) ++found;
  return static_cast<int32_t>(found);
}

int32_t PrefixCacheSimulation::CachedTokens(uint32_t request,
                                            int32_t most) const {
  return InBlocks(Find(request, most));
}

int32_t PrefixCacheSimulation::SharedBlocksWith(uint32_t request,
                                                int32_t most) const {
  const absl::Span<const uint32_t> chain = chains_->Of(request);
  const int32_t found = Find(request, most);
  int64_t idle = 0;
  for (int32_t i = 0; i < found; ++i) {
    idle += entries_[places_.at(chain[static_cast<size_t>(i)])].holders == 0;
  }
  return BlocksOf(num_shared_ + found - num_held_ - idle);
}

int32_t PrefixCacheSimulation::Hold(uint32_t request, int32_t most) {
  const absl::Span<const uint32_t> chain = chains_->Of(request);
  const int32_t found = Find(request, most);
  for (int32_t i = 0; i < found; ++i) {
    HoldOne(places_.at(chain[static_cast<size_t>(i)]));
  }
  num_shared_ += found;
  if (!chain.empty()) {
    CHECK(held_.emplace(request, Held{found, found}).second);
  }
  return InBlocks(found);
}

void PrefixCacheSimulation::Insert(uint32_t request) {
  const absl::Span<const uint32_t> chain = chains_->Of(request);
  if (chain.empty()) return;
  Held& held = held_.at(request);
  for (auto i = static_cast<size_t>(held.entries); i < chain.size(); ++i) {
    const auto at = places_.find(chain[i]);
    if (at != places_.end()) {
      HoldOne(at->second);
      ++held.entries;
      continue;
    }
    if ((num_entries() + 1) * entry_tokens_ > options_.max_tokens) {
      if (num_idle() == 0) return;
      EvictOne();
    }
    uint32_t place = static_cast<uint32_t>(entries_.size());
    if (free_places_.empty()) {
      entries_.emplace_back();
    } else {
      place = free_places_.back();
      free_places_.pop_back();
    }
    entries_[place] = {.number = chain[i], .holders = 1};
    places_.emplace(chain[i], place);
    journal_.Stored(NameOf(chain[i]));
    ++num_held_;
    ++held.entries;
    ++held.shared;
    ++num_shared_;
  }
}

void PrefixCacheSimulation::Release(uint32_t request) {
  const auto at = held_.find(request);
  if (at == held_.end()) return;
  const absl::Span<const uint32_t> chain = chains_->Of(request);
  // Those behind become idle first.
  for (auto i = static_cast<size_t>(at->second.entries); i > 0; --i) {
    const uint32_t place = places_.at(chain[i - 1]);
    if (--entries_[place].holders > 0) continue;
    --num_held_;
    AddToIdle(place);
  }
  num_shared_ -= at->second.shared;
  held_.erase(at);
}

void PrefixCacheSimulation::Fit(int32_t uncounted_blocks) {
  const int64_t free = int64_t{uncounted_blocks} * options_.block_size +
                       (num_shared_ - num_held_) * entry_tokens_;
  while (num_idle() > 0 && num_idle() * entry_tokens_ > free) EvictOne();
}

void PrefixCacheSimulation::HoldOne(uint32_t place) {
  if (entries_[place].holders++ > 0) return;
  TakeFromIdle(place);
  ++num_held_;
}

void PrefixCacheSimulation::AddToIdle(uint32_t place) {
  Entry& entry = entries_[place];
  entry.longer_idle = shortest_idle_;
  entry.shorter_idle = kNone;
  (shortest_idle_ == kNone ? longest_idle_
                           : entries_[shortest_idle_].shorter_idle) = place;
  shortest_idle_ = place;
}

void PrefixCacheSimulation::TakeFromIdle(uint32_t place) {
  const Entry& entry = entries_[place];
  (entry.longer_idle == kNone ? longest_idle_
                              : entries_[entry.longer_idle].shorter_idle) =
      entry.shorter_idle;
  (entry.shorter_idle == kNone ? shortest_idle_
                               : entries_[entry.shorter_idle].longer_idle) =
      entry.longer_idle;
}

void PrefixCacheSimulation::EvictOne() {
  const uint32_t place = longest_idle_;
  CHECK_NE(place, kNone);
  TakeFromIdle(place);
  const uint32_t number = entries_[place].number;
  CHECK_EQ(places_.erase(number), 1u);
  journal_.Removed(NameOf(number));
  free_places_.push_back(place);
}

}  // namespace baton::planner
