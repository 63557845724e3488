#include "model_tools/machine.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model_tools/model_shapes.h"
#include "tests/support/scratch_dir.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A made-up /proc and /sys.
class MachineTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = scratch_.path() + "/machine_test";
    Write("/proc/cpuinfo",
          "processor\t: 0\nmodel name\t: Abacus 9\nflags\t\t: fpu avx2 fma "
          "avx512f zzz\n\nprocessor\t: 1\nmodel name\t: Abacus 9\n");
    Write("/proc/meminfo",
          "MemTotal:       8388608 kB\nMemAvailable:   4194304 kB\n");
    Write("/sys/kernel/mm/transparent_hugepage/enabled",
          "always [madvise] never\n");
  }

  void Write(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }

  test::ScratchDir scratch_;
  std::string root_;
};

TEST_F(MachineTest, ReadsCpuAndMemory) {
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.cpu_model, "Abacus 9");
  EXPECT_THAT(machine.instruction_sets, ElementsAre("avx2", "fma", "avx512f"));
  EXPECT_EQ(machine.cpus, 2);
  EXPECT_GE(machine.usable_cpus, 1);
  EXPECT_EQ(machine.kernel_sets.back(), "portable");
  EXPECT_EQ(machine.memory.total, int64_t{8} << 30);
  EXPECT_EQ(machine.memory.available, int64_t{4} << 30);
  EXPECT_EQ(machine.memory.Free(), int64_t{4} << 30);
  EXPECT_EQ(machine.huge_pages, "madvise");
  EXPECT_FALSE(machine.cpu_quota.has_value());
  EXPECT_FALSE(machine.memory.limit.has_value());
}

TEST_F(MachineTest, ReadsControlGroupsOfVersion2) {
  Write("/proc/self/cgroup", "0::/a/b\n");
  Write("/sys/fs/cgroup/a/b/memory.max", "max\n");
  Write("/sys/fs/cgroup/a/memory.max", "3221225472\n");
  Write("/sys/fs/cgroup/a/memory.current", "1073741824\n");
  Write("/sys/fs/cgroup/a/b/cpu.max", "150000 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "max 100000\n");
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.memory.limit, int64_t{3} << 30);
  EXPECT_EQ(machine.memory.Free(), int64_t{2} << 30);
  EXPECT_EQ(machine.cpu_quota, 1.5);
}

TEST_F(MachineTest, ReadsControlGroupsOfVersion1) {
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/y\n0::/\n");
  Write("/sys/fs/cgroup/memory/y/memory.limit_in_bytes", "1073741824\n");
  Write("/sys/fs/cgroup/memory/y/memory.usage_in_bytes", "0\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "50000\n");
  Write("/sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.memory.limit, int64_t{1} << 30);
  EXPECT_EQ(machine.cpu_quota, 0.5);
}

TEST_F(MachineTest, TakesWhatItCanRead) {
  fs::remove_all(root_);
  const Machine machine = ReadMachine(root_);
  EXPECT_EQ(machine.cpu_model, "");
  EXPECT_EQ(machine.memory.total, 0);
  EXPECT_EQ(machine.huge_pages, "");
  // Garbage is no crash.
  Write("/proc/self/cgroup", "::\nx\n0::\n0::relative\n");
  Write("/proc/meminfo", "MemTotal\nMemAvailable: many kB\n");
  Write("/sys/fs/cgroup/cpu.max", "0 0\n");
  Write("/sys/kernel/mm/transparent_hugepage/enabled", "]x[\n");
  EXPECT_FALSE(ReadMachine(root_).cpu_quota.has_value());
}

Machine GoodMachine() {
  Machine machine;
  machine.kernel_sets = {"avx2", "portable"};
  machine.cpus = machine.usable_cpus = 4;
  machine.memory.total = machine.memory.available = int64_t{16} << 30;
  machine.huge_pages = "madvise";
  return machine;
}

TEST(FindTroubleTest, FindsWhatStandsInTheWay) {
  EXPECT_THAT(FindTrouble(GoodMachine()), IsEmpty());
  const auto only = [](const Machine& machine) {
    const std::vector<Finding> findings = FindTrouble(machine);
    EXPECT_THAT(findings, SizeIs(1));
    return findings.at(0);
  };
  Machine machine = GoodMachine();
  machine.kernel_sets = {"portable"};
  EXPECT_THAT(only(machine).text, HasSubstr("AVX2"));
  EXPECT_TRUE(only(machine).is_problem);
  machine = GoodMachine();
  machine.cpu_quota = 0.5;
  EXPECT_THAT(only(machine).text, HasSubstr("0.50 CPUs"));
  EXPECT_TRUE(only(machine).is_problem);
  machine.cpu_quota = 2;
  EXPECT_FALSE(only(machine).is_problem);
  machine.cpu_quota = 4;
  EXPECT_THAT(FindTrouble(machine), IsEmpty());
  machine.memory.limit = int64_t{900} << 20;
  EXPECT_THAT(only(machine).text, HasSubstr("0.88 GiB"));
  machine = GoodMachine();
  machine.huge_pages = "never";
  EXPECT_FALSE(only(machine).is_problem);
}

TEST(WorkerBytesTest, FollowTheWeights) {
  const engine::ModelConfig config = FindModelShape("Llama-3.1-8B")->config;
  const int64_t bf16 = WorkerBytes(config, WeightKind::kBf16, 0);
  const int64_t int8 = WorkerBytes(config, WeightKind::kInt8, 0);
  const int64_t int4 = WorkerBytes(config, WeightKind::kInt4, 0);
  EXPECT_NEAR(bf16 / 1e9, 16.06, 0.01);
  EXPECT_LT(int8, bf16 * 6 / 10);
  EXPECT_LT(int4, int8 * 7 / 10);
  EXPECT_EQ(WorkerBytes(config, WeightKind::kBf16, 1000), bf16 + 1000);
}

}  // namespace
}  // namespace baton::model_tools
