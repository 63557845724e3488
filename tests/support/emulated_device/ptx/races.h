// Finds accesses to blocks' memories that nothing orders: two of them, of
// different threads, at the same place, one of which writes. Not by chance,
// from what happened to come first, but from what threads wait for: barriers of
// a warp, a block or a cluster, and those that count arrivals. (Vector clocks:
// Lamport's "happened before"; Flanagan and Freund, "FastTrack", 2009.)
//
// A thread's order is that of its program; that lanes of a warp execute
// together orders nothing. What a thread wrote is seen by tensor cores that
// read by themselves once it has fenced it, too (PTX's "async proxy").
//
// It may miss one: of a place the last write is known, and of each warp the
// last reads, not those before a lane arrived at a barrier by itself meanwhile.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace baton::engine::cuda::emulated::ptx {

// What is before something: of each warp what it had done when all its lanes
// last waited for each other, and of single threads what they have done since.
struct Before {
  std::vector<uint32_t> warps;
  std::map<int, uint32_t> threads;

  void Join(const Before& other);
};

class Races final {
 public:
  // Of blocks with so many warps and bytes of memory each.
  Races(int blocks, int warps, int64_t bytes);

  // Everything so far is before everything that comes.
  void Start();

  struct Thread {
    int warp = 0;  // of the cluster
    int lane = 0;
  };
  // The last two: by tensor cores, and by copies that count at barriers.
  enum class Kind { kRead, kWrite, kAtomic, kProxyRead, kProxyWrite };
  struct Race {
    int line = 0;  // of the access before
    int thread = 0;
    bool unfenced = false;  // it is ordered, but for the fence
  };
  // An access to the memory of `block`, by an instruction at `line`. The race
  // that it is, until the next call; null when it is none.
  const Race* Access(const Thread& thread, Kind kind, int block, int64_t offset,
                     int64_t bytes, int line);

  // All lanes of the warp have come here.
  void SyncWarp(int warp);
  // All threads of the block, or of all blocks.
  void SyncBlock(int block);
  void SyncCluster();
  // What the thread did so far; what it does from here on is not part of it.
  Before Release(const Thread& thread);
  // Of what the thread wrote so far.
  void FenceProxy(const Thread& thread);
  // What comes in this warp is behind that.
  void Acquire(int warp, const Before& before);

 private:
  static constexpr int64_t kGranule = 2;  // bytes

  struct Write {
    int thread = -1;
    uint32_t clock = 0;
    int line = 0;
    Kind kind = Kind::kWrite;
    int64_t number = 0;  // of all accesses and fences
  };
  struct Reads {
    uint32_t clock = 0;
    uint32_t lanes = 0;  // that read at that clock
    int line = 0;
  };

  bool IsBefore(int warp, uint32_t lanes, uint32_t clock,
                const Thread& now) const;
  void Sync(int first_warp, int end_warp);
  const Race* Found(const Race& race);

  const int warps_;  // of a block
  const int64_t granules_;
  std::vector<uint32_t> clocks_;    // of each warp: that of what it does now
  std::vector<uint32_t> together_;  // of what all lanes had done
  std::vector<Before> before_;      // of each warp
  std::vector<int64_t> fences_;     // of each thread: the last one's number
  int64_t number_ = 0;
  Race race_;
  std::vector<Write> writes_;  // [block][granule]
  std::vector<Reads> reads_;   // [block][warp][granule]
  // Bit w % 64 where reads of warp w are: [block][granule].
  std::vector<uint64_t> readers_;
};

}  // namespace baton::engine::cuda::emulated::ptx
