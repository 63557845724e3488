// The device that the CPU plays finds what it is there to find.
#include "tests/support/emulated_device/fibers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/emulated_device/device_target.h"

namespace baton::engine::cuda::emulated {
namespace {

LaunchShape OneBlock(uint32_t threads, int64_t shared_bytes = 0) {
  LaunchShape shape;
  shape.threads = threads;
  shape.shared_bytes = shared_bytes;
  return shape;
}

class FibersTest : public testing::Test {
 protected:
  ~FibersTest() override { SetThreadOrder(ThreadOrder::kVaried); }
};

TEST_F(FibersTest, EveryThreadOfEveryBlockRunsOnce) {
  LaunchShape shape = OneBlock(64);
  shape.x = 3;
  shape.y = 2;
  shape.z = 2;
  std::vector<int> runs(3 * 2 * 2 * 64);
  RunKernel("count", shape, [&] {
    const ThreadPlace& here = Here();
    ++runs[((here.block_z * 2 + here.block_y) * 3 + here.block_x) * 64 +
           here.thread];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_F(FibersTest, BarriersOrderThreads) {
  for (const ThreadOrder order : {ThreadOrder::kRising, ThreadOrder::kFalling,
                                  ThreadOrder::kWarpsFalling}) {
    SetThreadOrder(order);
    std::vector<int> seen(128);
    RunKernel("turn", OneBlock(128, 128 * sizeof(int)), [&] {
      int* const shared = reinterpret_cast<int*>(cuda::SharedMemory());
      shared[Thread()] = 3 * Thread();
      cuda::SyncBlock();
      seen[Thread()] = shared[127 - Thread()];
    });
    for (int i = 0; i < 128; ++i) EXPECT_EQ(seen[i], 3 * (127 - i));
  }
}

// Without the barrier the result depends on who is first.
TEST_F(FibersTest, RacesShowInTheOrder) {
  const auto run = [](ThreadOrder order) {
    SetThreadOrder(order);
    int last = -1;
    RunKernel("race", OneBlock(64), [&] { last = Thread(); });
    return last;
  };
  EXPECT_NE(run(ThreadOrder::kRising), run(ThreadOrder::kFalling));
}

// Blocks run in any order, of all dimensions.
TEST_F(FibersTest, BlocksThatFollowEachOtherShowInTheOrder) {
  LaunchShape shape = OneBlock(32);
  shape.x = 4;
  shape.y = 3;
  shape.z = 2;
  shape.cluster = 2;
  const auto run = [&](ThreadOrder order) {
    SetThreadOrder(order);
    std::vector<std::array<int, 3>> blocks;
    RunKernel("blocks", shape, [&] {
      const ThreadPlace& here = Here();
      if (here.thread == 0) {
        blocks.push_back({here.block_z, here.block_y, here.block_x});
      }
    });
    EXPECT_EQ(blocks.size(), 24u);
    return blocks;
  };
  std::vector<std::array<int, 3>> blocks = run(ThreadOrder::kRising);
  EXPECT_TRUE(std::is_sorted(blocks.begin(), blocks.end()));
  std::reverse(blocks.begin(), blocks.end());
  EXPECT_EQ(run(ThreadOrder::kFalling), blocks);
}

TEST_F(FibersTest, LanesExchange) {
  std::vector<int> seen(64);
  RunKernel("exchange", OneBlock(64), [&] {
    const int sum = Thread() + ShuffleXor(Thread(), 5);
    seen[Thread()] = sum + ShuffleUp(sum, 1);
  });
  const auto sum = [](int thread) { return thread + (thread ^ 5); };
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(seen[i], sum(i) + sum(i % 32 == 0 ? i : i - 1)) << i;
  }
}

// Adds up what the lanes of a warp have brought.
void Add(ExchangeWords* all) {
  uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += all[lane][0];
  for (int lane = 0; lane < 32; ++lane) all[lane][0] = sum;
}

TEST_F(FibersTest, WhatLanesExchangeIsJoinedOnce) {
  std::vector<uint32_t> sums(64);
  RunKernel("join", OneBlock(64), [&] {
    const auto mine = static_cast<uint32_t>(Thread());
    const uint32_t sum = Exchange(&mine, 1, Add)[Thread() % 32][0];
    // The next exchange joins nothing.
    sums[Thread()] = Exchange(&sum, 1)[31 - Thread() % 32][0];
  });
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(sums[i], i < 32 ? 31u * 32 / 2 : 31u * 32 / 2 + 32 * 32);
  }
}

TEST_F(FibersTest, DeathOfLanesThatDoDifferentThings) {
  EXPECT_DEATH(RunKernel("apart", OneBlock(32),
                         [] {
                           const uint32_t mine = 1;
                           Exchange(&mine, 1, Thread() == 7 ? Add : nullptr);
                         }),
               "apart: the lanes of a warp do different things");
}

TEST_F(FibersTest, MemoryOfABlockBeginsAsNan) {
  RunKernel("begin", OneBlock(32, 64), [&] {
    EXPECT_TRUE(std::isnan(reinterpret_cast<float*>(cuda::SharedMemory())[3]));
  });
}

// A copy is there when it was awaited, and not before.
TEST_F(FibersTest, CopiesArriveWhenTheyAreAwaited) {
  alignas(16) const float from[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  RunKernel("copies", OneBlock(32, 32 * 48), [&] {
    float* const to =
        reinterpret_cast<float*>(cuda::SharedMemory() + Thread() * 48);
    CopyAsync16(to, from, true);
    cuda::CommitCopies();
    CopyAsync16(to + 4, from + 4, true);
    CopyAsync16(to + 8, from, false);
    cuda::CommitCopies();
    EXPECT_TRUE(std::isnan(to[0]));
    cuda::AwaitCopies<1>();
    EXPECT_EQ(to[3], 4);
    EXPECT_TRUE(std::isnan(to[4]));
    cuda::AwaitCopies<0>();
    EXPECT_EQ(to[7], 8);
    EXPECT_EQ(to[8], 0);
  });
}

TEST_F(FibersTest, DeathOfABarrierThatNotAllReach) {
  EXPECT_DEATH(RunKernel("block", OneBlock(64),
                         [] {
                           if (Thread() < 32) cuda::SyncBlock();
                         }),
               "block: some threads wait");
  EXPECT_DEATH(RunKernel("warp", OneBlock(32),
                         [] {
                           if (Thread() < 31) cuda::SyncWarp();
                         }),
               "warp: the lanes of warp 0");
}

TEST_F(FibersTest, DeathOfACopyThatNobodyAwaits) {
  alignas(16) static const float from[4] = {};
  EXPECT_DEATH(RunKernel("copy", OneBlock(32, 512),
                         [] {
                           CopyAsync16(cuda::SharedMemory() + 16 * Thread(),
                                       from, true);
                           cuda::CommitCopies();
                         }),
               "copies that nobody waited for");
}

LaunchShape Cluster(uint32_t blocks) {
  LaunchShape shape = OneBlock(64, 64 * sizeof(int));
  shape.x = 2 * blocks;
  shape.y = 2;
  shape.cluster = blocks;
  return shape;
}

int* IntOf(const unsigned char* shared) {
  return reinterpret_cast<int*>(const_cast<unsigned char*>(shared));
}

TEST_F(FibersTest, BlocksOfAClusterReadEachOthersMemory) {
  for (const ThreadOrder order : {ThreadOrder::kRising, ThreadOrder::kFalling,
                                  ThreadOrder::kWarpsFalling}) {
    SetThreadOrder(order);
    std::vector<int> seen(8 * 2 * 64);
    RunKernel("cluster", Cluster(4), [&] {
      EXPECT_EQ(ClusterRank(), BlockX() % 4);
      IntOf(cuda::SharedMemory())[Thread()] = 100 * BlockX() + Thread();
      cuda::SyncCluster();
      const int32_t other = (ClusterRank() + 1) % 4;
      seen[(BlockY() * 8 + BlockX()) * 64 + Thread()] = IntOf(
          cuda::emulated::SharedOf(cuda::SharedMemory(), other))[63 - Thread()];
      cuda::SyncCluster();
    });
    for (int i = 0; i < static_cast<int>(seen.size()); ++i) {
      const int block = i / 64 % 8;
      const int other = block / 4 * 4 + (block + 1) % 4;
      EXPECT_EQ(seen[i], 100 * other + 63 - i % 64) << i;
    }
  }
}

TEST_F(FibersTest, DeathOfClustersThatDoNotWaitForEachOther) {
  // Reads what is not written yet: NaN's bits.
  SetThreadOrder(ThreadOrder::kRising);
  int early = 0;
  RunKernel("early", Cluster(2), [&] {
    IntOf(cuda::SharedMemory())[Thread()] = 1;
    if (ClusterRank() == 0) {
      early =
          IntOf(cuda::emulated::SharedOf(cuda::SharedMemory(), 1))[Thread()];
    }
    cuda::SyncCluster();
  });
  EXPECT_EQ(early, -1);
  EXPECT_DEATH(RunKernel("late", Cluster(2),
                         [] {
                           cuda::SyncCluster();
                           cuda::emulated::SharedOf(cuda::SharedMemory(),
                                                    1 - ClusterRank());
                         }),
               "late: the block whose memory is read has ended");
  EXPECT_DEATH(RunKernel("some", Cluster(2),
                         [] {
                           if (ClusterRank() == 0) cuda::SyncCluster();
                         }),
               "some: some threads wait for");
  EXPECT_DEATH(
      RunKernel("far", Cluster(2),
                [] { cuda::emulated::SharedOf(cuda::SharedMemory(), 2); }),
      "far: the cluster has no block 2");
}

// Bytes come for both blocks, and are there when the phase has ended.
TEST_F(FibersTest, BarriersCountArrivalsAndBytes) {
  alignas(16) static const int from[2][16] = {
      {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
      {21, 22, 23, 24}};
  for (const ThreadOrder order : {ThreadOrder::kRising, ThreadOrder::kFalling,
                                  ThreadOrder::kWarpsFalling}) {
    SetThreadOrder(order);
    int sum = 0;
    RunKernel("barrier", Cluster(2), [&] {
      int* const to = IntOf(cuda::SharedMemory());
      auto* const full = reinterpret_cast<Barrier*>(to + 32);
      Barrier* const empty = full + 1;
      if (Thread() == 0) {
        cuda::InitBarrier(full, 1);
        cuda::InitBarrier(empty, 2);  // a warp of each block
        FenceBarriers();
      }
      cuda::SyncCluster();
      for (int turn = 0; turn < 2; ++turn) {
        if (Thread() < 32) {
          cuda::AwaitBarrier(empty, turn % 2 ^ 1);
          if (Thread() == 0) {
            cuda::ArriveExpecting(full, 64);
            cuda::CopyToCluster(to + 8 * ClusterRank(),
                                from[turn] + 8 * ClusterRank(), 32, full, 3);
          }
        } else {
          cuda::AwaitBarrier(full, turn % 2);
          if (Thread() == 63) {
            for (int i = 0; i < 16; ++i) sum += to[i];
          }
          SyncWarp();
          if (Thread() == 32) {
            cuda::ArriveAt(empty, 0);
            cuda::ArriveAt(empty, 1);
          }
        }
      }
      cuda::SyncCluster();
    });
    EXPECT_EQ(sum, 8 * (136 + 90));  // four clusters of two blocks
  }
}

// Who ends a phase goes on after those who waited for it: what it, or the rest
// of its warp, should have done before is seen to be missing.
TEST_F(FibersTest, ThreadsThatWaitedGoOnBeforeTheOneThatArrived) {
  for (const ThreadOrder order : {ThreadOrder::kRising, ThreadOrder::kFalling,
                                  ThreadOrder::kWarpsFalling}) {
    SetThreadOrder(order);
    for (const bool synced : {false, true}) {
      int written = 0;
      int seen = -1;
      RunKernel("arrive", OneBlock(64, 64), [&] {
        auto* const barrier = reinterpret_cast<Barrier*>(cuda::SharedMemory());
        if (Thread() == 0) {
          cuda::InitBarrier(barrier, 1);
          FenceBarriers();
        }
        cuda::SyncBlock();
        if (Thread() >= 32) {
          cuda::AwaitBarrier(barrier, 0);
          if (Thread() == 32) seen = written;
          return;
        }
        // The lane that arrives runs first or last.
        const int arrives = order == ThreadOrder::kFalling ? 31 : 0;
        if (Thread() != arrives) ++written;
        if (synced) SyncWarp();
        if (Thread() == arrives) cuda::Arrive(barrier);
      });
      EXPECT_EQ(seen, synced ? 31 : 0);
    }
  }
}

TEST_F(FibersTest, DeathOfBarriersThatAreTreatedIll) {
  static int how;
  alignas(16) static const int from[8] = {};
  const auto run = [] {
    RunKernel("barrier", Cluster(2), [] {
      auto* const barrier =
          reinterpret_cast<Barrier*>(cuda::SharedMemory() + 128);
      if (Thread() == 0 && how != 0) cuda::InitBarrier(barrier, 1);
      cuda::SyncCluster();
      if (Thread() == 0) {
        // Fewer bytes than are expected; more arrivals; and a block that does
        // not wait for what the other one copies.
        cuda::ArriveExpecting(barrier, how == 1 ? 64 : 32);
        if (how == 2) cuda::ArriveExpecting(barrier, 0);
        cuda::CopyToCluster(cuda::SharedMemory(), from, 32, barrier,
                            how == 3 ? 3 : 1 << ClusterRank());
      }
      SyncWarp();  // a warp's lanes wait together
      cuda::AwaitBarrier(barrier, 0);
    });
  };
  how = 0;
  EXPECT_DEATH(run(), "a barrier that nobody made");
  how = 1;
  EXPECT_DEATH(run(), "barrier: some threads wait for what does not come");
  how = 2;
  EXPECT_DEATH(run(), "more arrivals than a barrier's phase has");
  how = 3;
  EXPECT_DEATH(run(), "");
  how = 4;
  for (int order = 0; order < 3; ++order) run();
}

// A kernel may begin before those before it have ended.
TEST_F(FibersTest, DeathOfAKernelThatDoesNotWaitForOthers) {
  const auto run = [](auto body) {
    RunKernel("next", OneBlock(32, 512), body, /*awaits=*/true);
  };
  alignas(16) static float data[4] = {};
  run([] {
    PrefetchToL2(data);
    cuda::AwaitEarlierKernels();
    Load16(data);
  });
  const char* const message = "next: does not wait for the kernels before it";
  EXPECT_DEATH(run([] {}), message);
  EXPECT_DEATH(run([] {
                 Load16(data);
                 cuda::AwaitEarlierKernels();
               }),
               message);
  EXPECT_DEATH(run([] {
                 cuda::SyncBlock();
                 cuda::AwaitEarlierKernels();
               }),
               message);
  EXPECT_DEATH(run([] {
                 CopyAsync16(cuda::SharedMemory() + Thread() * 16, data, true);
                 cuda::AwaitEarlierKernels();
               }),
               message);
}

TEST_F(FibersTest, DeathOfAWriteBehindTheBlocksMemory) {
  EXPECT_DEATH(RunKernel("write", OneBlock(32, 64),
                         [] { cuda::SharedMemory()[64] = 1; }),
               "wrote 0 bytes behind");
}

}  // namespace
}  // namespace baton::engine::cuda::emulated
