#include "common/process/cpu_quota.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton::process {
namespace {

namespace fs = std::filesystem;

// A made-up /proc and /sys.
class CpuQuotaTest : public testing::Test {
 protected:
  void SetUp() override { root_ = scratch_.path() + "/cpu_quota_test"; }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  test::ScratchDir scratch_;
  std::string root_;
};

TEST_F(CpuQuotaTest, NoneWithoutGroups) {
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
}

TEST_F(CpuQuotaTest, TheGroupThatLeavesLeastCounts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
  Write("/sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 1.5);
  Write("/sys/fs/cgroup/a/b/cpu.max", "400000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 1.5);
  Write("/sys/fs/cgroup/a/b/cpu.max", "25000 50000\n");
  EXPECT_EQ(CpuQuota(root_), 0.5);
}

// What a container sees of itself.
TEST_F(CpuQuotaTest, OfTheRootGroup) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  EXPECT_EQ(CpuQuota(root_), 2.0);
}

TEST_F(CpuQuotaTest, Version1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n0::/\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CpuQuota(root_), 0.5);
}

TEST_F(CpuQuotaTest, GarbageIsNoLimit) {
  Write("/proc/self/cgroup", "::\nx\n0::\n0::relative\n0::/z\n3:cpu:/z\n");
  for (const char* text : {"", "0 0\n", "max\n", "-5 100000\n", "5 0\n",
                           "5 -5\n", "nan nan\n", "inf 1\n", "1 2 3\n"}) {
    Write("/sys/fs/cgroup/z/cpu.max", text);
    EXPECT_EQ(CpuQuota(root_), std::nullopt) << text;
  }
  Write("/sys/fs/cgroup/cpu/z/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(CpuQuota(root_), std::nullopt);
}

TEST(ThreadsWithinTest, AreNoMoreThanTheQuotaKeepsBusy) {
  EXPECT_EQ(ThreadsWithin(std::nullopt, 8), 8);
  EXPECT_EQ(ThreadsWithin(100.0, 8), 8);
  EXPECT_EQ(ThreadsWithin(8.0, 8), 8);
  EXPECT_EQ(ThreadsWithin(2.0, 8), 2);
  EXPECT_EQ(ThreadsWithin(1.5, 8), 2);
  EXPECT_EQ(ThreadsWithin(0.1, 8), 1);
  EXPECT_EQ(ThreadsWithin(1e-300, 1), 1);
}

}  // namespace
}  // namespace baton::process
