// What the threads of ranks tell each other. No device is asked.
#include "engine/cuda/rank_threads.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::engine::cuda {
namespace {

using scheduling::StepPlan;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kRanks = 4;

// Runs run(rank) on a thread for each, at the same time.
void OnThreads(const std::function<void(int32_t)>& run) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] { run(rank); });
  }
  for (std::thread& thread : threads) thread.join();
}

// The device that the calling thread has selected.
thread_local int32_t selected = -1;

TEST(RankThreadsTest, EachRankHasItsDeviceAndAllRunAtTheSameTime) {
  RankThreads threads(kRanks, [](int32_t rank) { selected = rank; });
  for (int call = 0; call < 100; ++call) {
    // Whoever called last had another one.
    selected = kRanks;
    std::vector<int32_t> devices(kRanks, -1);
    RankMeeting meeting(kRanks);
    threads.Run([&](int32_t rank) {
      devices[rank] = selected;
      meeting.Meet();
    });
    EXPECT_THAT(devices, ElementsAre(0, 1, 2, 3));
    EXPECT_EQ(selected, 0);
  }
}

TEST(RankThreadsTest, OneRankIsWhoeverCalls) {
  RankThreads threads(1, [](int32_t rank) { selected = rank; });
  const auto caller = std::this_thread::get_id();
  std::thread::id ran;
  threads.Run([&](int32_t) { ran = std::this_thread::get_id(); });
  EXPECT_EQ(ran, caller);
}

// Steps in turns with one that is given and without.
TEST(StepRelayTest, AllTakeWhatIsGivenAndNobodyWaitsForNothing) {
  constexpr int kSteps = 300;
  StepRelay relay(kRanks);
  std::vector<int> taken(kRanks, 0);
  for (int step = 0; step < kSteps; ++step) {
    relay.Begin();
    OnThreads([&](int32_t rank) {
      if (rank > 0) {
        relay.Take([&](const StepPlan& plan) {
          EXPECT_EQ(plan.sequences.size(), static_cast<size_t>(step));
          ++taken[rank];
        });
        return;
      }
      if (step % 2 == 0) {
        StepPlan plan;
        plan.sequences.resize(step);
        relay.Give(plan);
        // All have taken it: it may be changed.
        plan.sequences.clear();
        ++taken[0];
      }
      relay.End();
    });
  }
  EXPECT_THAT(taken, Each(kSteps / 2));
}

TEST(RankMeetingTest, NobodyLeavesBeforeAllAreThere) {
  RankMeeting meeting(kRanks);
  std::atomic<int> there = 0;
  OnThreads([&](int32_t) {
    for (int i = 1; i <= 200; ++i) {
      ++there;
      meeting.Meet();
      EXPECT_GE(there.load(), i * kRanks);
      meeting.Meet();
    }
  });
  EXPECT_EQ(there.load(), 200 * kRanks);
}

TEST(RankMeetingTest, AllHearWhetherAllSaidYes) {
  RankMeeting meeting(kRanks);
  OnThreads([&](int32_t rank) {
    for (int i = 0; i < 200; ++i) {
      // In each third all do, else one of them does not.
      const bool yes = i % 3 == 0 || i % kRanks != rank;
      EXPECT_EQ(meeting.Meet(yes), i % 3 == 0) << i;
    }
  });
}

TEST(LayerGateTest, ALayerIsDoneWhenAllRanksHaveIt) {
  constexpr int32_t kLayers = 50;
  LayerGate gate(kRanks);
  for (int step = 0; step < 5; ++step) {
    gate.Begin();
    std::vector<std::atomic<int>> done(kLayers);
    OnThreads([&](int32_t rank) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        if (rank > 0) {
          ++done[layer];
          gate.Pass(rank, layer);
        } else {
          gate.Await(layer);
          EXPECT_EQ(done[layer].load(), kRanks - 1);
        }
      }
    });
  }
}

}  // namespace
}  // namespace baton::engine::cuda
