#include "tests/support/emulated_device/ptx/races.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace baton::engine::cuda::emulated::ptx {
namespace {

constexpr int kLanes = 32;

}  // namespace

void Before::Join(const Before& other) {
  if (warps.size() < other.warps.size()) warps.resize(other.warps.size());
  for (size_t w = 0; w < other.warps.size(); ++w) {
    warps[w] = std::max(warps[w], other.warps[w]);
  }
  for (const auto& [thread, clock] : other.threads) {
    uint32_t& mine = threads[thread];
    mine = std::max(mine, clock);
  }
  for (auto thread = threads.begin(); thread != threads.end();) {
    thread = thread->second <= warps[thread->first / kLanes]
                 ? threads.erase(thread)
                 : std::next(thread);
  }
}

Races::Races(int blocks, int warps, int64_t bytes)
    : warps_(warps),
      granules_((bytes + kGranule - 1) / kGranule),
      clocks_(static_cast<size_t>(blocks) * warps, 1),
      together_(clocks_.size()),
      before_(clocks_.size()),
      fences_(clocks_.size() * kLanes),
      writes_(blocks * granules_),
      reads_(blocks * granules_ * clocks_.size()),
      readers_(blocks * granules_) {
  Start();
}

void Races::Start() {
  SyncCluster();
  std::fill(fences_.begin(), fences_.end(), ++number_);
}

void Races::Sync(int first_warp, int end_warp) {
  Before all;
  all.warps.resize(clocks_.size());
  for (int w = first_warp; w < end_warp; ++w) {
    together_[w] = clocks_[w]++;
    before_[w].warps.resize(clocks_.size());
    before_[w].warps[w] = together_[w];
    all.Join(before_[w]);
  }
  for (int w = first_warp; w < end_warp; ++w) before_[w] = all;
}

void Races::SyncWarp(int warp) { Sync(warp, warp + 1); }
void Races::SyncBlock(int block) { Sync(block * warps_, (block + 1) * warps_); }
void Races::SyncCluster() { Sync(0, static_cast<int>(clocks_.size())); }

Before Races::Release(const Thread& thread) {
  Before before = before_[thread.warp];
  before.warps[thread.warp] = together_[thread.warp];
  before.threads[thread.warp * kLanes + thread.lane] = clocks_[thread.warp]++;
  return before;
}

void Races::FenceProxy(const Thread& thread) {
  fences_[thread.warp * kLanes + thread.lane] = ++number_;
}

void Races::Acquire(int warp, const Before& before) {
  before_[warp].Join(before);
}

// Whether what these lanes of a warp did at that clock is before what `now`
// does.
bool Races::IsBefore(int warp, uint32_t lanes, uint32_t clock,
                     const Thread& now) const {
  if (warp == now.warp &&
      (clock <= together_[warp] || lanes == 1u << now.lane)) {
    return true;
  }
  const Before& before = before_[now.warp];
  if (clock <= before.warps[warp]) return true;
  for (int lane = 0; lane < kLanes; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    if (warp == now.warp && lane == now.lane) continue;
    const auto known = before.threads.find(warp * kLanes + lane);
    if (known == before.threads.end() || known->second < clock) return false;
  }
  return true;
}

const Races::Race* Races::Found(const Race& race) {
  race_ = race;
  return &race_;
}

const Races::Race* Races::Access(const Thread& thread, Kind kind, int block,
                                 int64_t offset, int64_t bytes, int line) {
  const size_t all_warps = clocks_.size();
  const bool reads_only = kind == Kind::kRead || kind == Kind::kProxyRead;
  ++number_;
  const int64_t end = (offset + bytes + kGranule - 1) / kGranule;
  for (int64_t g = offset / kGranule; g < end; ++g) {
    const size_t place = block * granules_ + g;
    Write& write = writes_[place];
    // Lanes that do it at once, and alike.
    const bool same = write.thread / kLanes == thread.warp &&
                      write.line == line && write.clock == clocks_[thread.warp];
    if (write.thread >= 0 && !same &&
        !(kind == Kind::kAtomic && write.kind == Kind::kAtomic) &&
        !IsBefore(write.thread / kLanes, 1u << write.thread % kLanes,
                  write.clock, thread)) {
      return Found({write.line, write.thread});
    }
    if (kind == Kind::kProxyRead && write.thread >= 0 &&
        write.kind != Kind::kProxyWrite &&
        fences_[write.thread] < write.number) {
      return Found({write.line, write.thread, /*unfenced=*/true});
    }
    const auto reads = [&](size_t warp) -> Reads& {
      return reads_[(block * all_warps + warp) * granules_ + g];
    };
    if (reads_only) {
      Reads& mine = reads(thread.warp);
      const uint32_t clock = clocks_[thread.warp];
      if (mine.clock != clock) mine = {clock, 0, line};
      mine.lanes |= 1u << thread.lane;
      readers_[place] |= uint64_t{1} << thread.warp % 64;
      continue;
    }
    for (uint64_t left = readers_[place]; left != 0; left &= left - 1) {
      for (size_t w = std::countr_zero(left); w < all_warps; w += 64) {
        Reads& theirs = reads(w);
        if (theirs.lanes == 0) continue;
        if (!IsBefore(static_cast<int>(w), theirs.lanes, theirs.clock,
                      thread)) {
          return Found({theirs.line, static_cast<int>(w) * kLanes});
        }
        theirs.lanes = 0;
      }
    }
    readers_[place] = 0;
    write = {thread.warp * kLanes + thread.lane, clocks_[thread.warp], line,
             kind, number_};
  }
  return nullptr;
}

}  // namespace baton::engine::cuda::emulated::ptx
