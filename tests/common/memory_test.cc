#include "common/process/memory.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton::process {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kGiB = int64_t{1} << 30;

// A made-up /proc and /sys.
class MemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = scratch_.path() + "/memory_test";
    Write("/proc/meminfo",
          "MemTotal:       8388608 kB\nMemFree:  1 kB\n"
          "MemAvailable:   4194304 kB\n");
  }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  test::ScratchDir scratch_;
  std::string root_;
};

TEST_F(MemoryTest, OfAMachineWithoutGroups) {
  const MemoryState state = ReadMemory(root_);
  EXPECT_EQ(state.total, 8 * kGiB);
  EXPECT_EQ(state.available, 4 * kGiB);
  EXPECT_FALSE(state.limit.has_value());
  EXPECT_EQ(state.Free(), 4 * kGiB);
}

TEST_F(MemoryTest, TheGroupThatLeavesLeastCounts) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  const std::string a = "/sys/fs/cgroup/a/";
  Write(a + "b/memory.max", "max\n");
  Write(a + "memory.max", "3221225472\n");
  Write(a + "memory.current", "1073741824\n");
  EXPECT_EQ(ReadMemory(root_).Free(), 2 * kGiB);
  // A higher limit of which more is taken.
  Write(a + "b/memory.max", "3758096384\n");
  Write(a + "b/memory.current", "3221225472\n");
  EXPECT_EQ(ReadMemory(root_).Free(), kGiB / 2);
  // What the kernel could drop is not taken.
  Write(a + "b/memory.stat",
        "anon 5\ninactive_file 1073741824\nactive_file 99\n");
  EXPECT_EQ(ReadMemory(root_).limit_used, 2 * kGiB);
  EXPECT_EQ(ReadMemory(root_).Free(), 3 * kGiB / 2);
  // Taken beyond the limit.
  Write(a + "b/memory.current", "9221225472\n");
  EXPECT_EQ(ReadMemory(root_).Free(), 0);
}

TEST_F(MemoryTest, Version1) {
  Write("/proc/self/cgroup", "5:cpu:/x\n4:memory:/y\n0::/\n");
  const std::string y = "/sys/fs/cgroup/memory/y/";
  Write(y + "memory.limit_in_bytes", "3221225472\n");
  Write(y + "memory.usage_in_bytes", "2147483648\n");
  Write(y + "memory.stat", "inactive_file 7\ntotal_inactive_file 1073741824\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(ReadMemory(root_).Free(), 2 * kGiB);
}

TEST_F(MemoryTest, GarbageIsNoCrash) {
  Write("/proc/self/cgroup", "::\nx\n0::\n0::relative\n0::/z\n");
  Write("/proc/meminfo", "MemTotal\nMemAvailable: many kB\n");
  Write("/sys/fs/cgroup/z/memory.max", "1073741824\n");
  Write("/sys/fs/cgroup/z/memory.stat", "inactive_file\ninactive_file x\n");
  const MemoryState state = ReadMemory(root_);
  EXPECT_EQ(state.total, 0);
  EXPECT_EQ(state.limit, kGiB);
  EXPECT_EQ(state.Free(), 0);
}

TEST(RealMemoryTest, IsThere) {
  const MemoryState state = ReadMemory();
  EXPECT_GT(state.total, 0);
  EXPECT_GT(state.Free(), 0);
  EXPECT_LE(state.Free(), state.total);
}

}  // namespace
}  // namespace baton::process
