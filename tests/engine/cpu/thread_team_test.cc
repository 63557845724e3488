#include "engine/cpu/thread_team.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/process/cpu_quota.h"

namespace baton::engine::cpu {
namespace {

TEST(ThreadTeamTest, RunsEveryItemOnce) {
  for (const int32_t threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.num_threads(), threads);
    for (const int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<int> runs(items);
      team.ParallelFor(items, [&](int64_t item, int32_t thread) {
        EXPECT_TRUE(thread >= 0 && thread < threads);
        ++runs[item];  // each item has its own
      });
      EXPECT_EQ(runs, std::vector<int>(items, 1));
    }
  }
}

// Loops of changing size right after each other: what a late thread could get
// wrong. The sums are plain, so that ThreadSanitizer sees a missing order.
TEST(ThreadTeamTest, LoopsDoNotMix) {
  ThreadTeam team(4);
  for (int64_t loop = 0; loop < 5000; ++loop) {
    const int64_t items = loop % 9;
    std::vector<int64_t> out(items, -1);
    team.ParallelFor(items,
                     [&](int64_t item, int32_t) { out[item] = loop + item; });
    for (int64_t i = 0; i < items; ++i) ASSERT_EQ(out[i], loop + i);
  }
}

TEST(ThreadTeamTest, OtherThreadsTakePart) {
  ThreadTeam team(2);
  std::atomic<int> inside{0};
  absl::Notification both_inside;
  // Each item waits for the other, so two threads must be at it.
  team.ParallelFor(2, [&](int64_t, int32_t) {
    if (++inside == 2) both_inside.Notify();
    both_inside.WaitForNotification();
  });
  EXPECT_EQ(inside, 2);
}

absl::Duration CpuTimeOfProcess() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return absl::DurationFromTimespec(t);
}

TEST(ThreadTeamTest, AnIdleTeamUsesNoCpu) {
  ThreadTeam team(4);
  team.ParallelFor(100, [](int64_t, int32_t) {});
  const absl::Duration before = CpuTimeOfProcess();
  // The window in which CPU time is counted; nothing is waited for.
  absl::Notification never;
  never.WaitForNotificationWithTimeout(absl::Milliseconds(200));
  // Three threads that spin would have used 600 ms, or what there is of CPUs.
  EXPECT_LT(CpuTimeOfProcess() - before, absl::Milliseconds(50));
}

TEST(ThreadTeamTest, PinnedThreadsStayOnCpusOfTheirOwn) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  if (CPU_COUNT(&allowed) < 2) GTEST_SKIP() << "needs two CPUs";
  // A thread of its own: being pinned is for life.
  std::thread([&allowed] {
    ThreadTeam team(2, /*pin=*/true);
    team.PinCaller();
    std::vector<cpu_set_t> sets(2);
    for (cpu_set_t& set : sets) CPU_ZERO(&set);
    std::atomic<int> arrived{0};
    // Each thread takes one of the two items: none ends before both began.
    team.ParallelFor(2, [&](int64_t, int32_t thread) {
      sched_getaffinity(0, sizeof(cpu_set_t), &sets[thread]);
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
    });
    cpu_set_t common;
    CPU_AND(&common, &sets[0], &sets[1]);
    EXPECT_EQ(CPU_COUNT(&sets[0]), 1);
    EXPECT_EQ(CPU_COUNT(&sets[1]), 1);
    EXPECT_EQ(CPU_COUNT(&common), 0);
  }).join();
}

TEST(ThreadTeamTest, MoreThreadsThanCpusAreNotPinned) {
  std::thread([] {
    cpu_set_t before, after;
    CPU_ZERO(&before);
    CPU_ZERO(&after);
    sched_getaffinity(0, sizeof(before), &before);
    ThreadTeam team(CPU_COUNT(&before) + 1, /*pin=*/true);
    team.PinCaller();
    sched_getaffinity(0, sizeof(after), &after);
    EXPECT_TRUE(CPU_EQUAL(&before, &after));
  }).join();
}

TEST(ThreadTeamTest, ZeroTakesTheCpusOfTheProcess) {
  cpu_set_t set;
  CPU_ZERO(&set);
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  EXPECT_EQ(ThreadTeam(0).num_threads(),
            process::ThreadsWithin(process::CpuQuota(), CPU_COUNT(&set)));
}

}  // namespace
}  // namespace baton::engine::cpu
