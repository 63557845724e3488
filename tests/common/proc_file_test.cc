#include "common/process/proc_file.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton::process {
namespace {

namespace fs = std::filesystem;

class ProcFileTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = scratch_.path() + "/proc_file_test";
    fs::create_directory(dir_);
  }

  std::string Write(const std::string& text) const {
    const std::string path = dir_ + "/file";
    std::ofstream(path) << text;
    return path;
  }
  std::optional<int64_t> NumberOf(const std::string& text) const {
    return ReadProcNumber(Write(text));
  }

  test::ScratchDir scratch_;
  std::string dir_;
};

TEST_F(ProcFileTest, ReadsAllOfAFile) {
  EXPECT_EQ(ReadProcFile(Write("anon 5\n\nfile 7\n")), "anon 5\n\nfile 7\n");
  EXPECT_EQ(ReadProcFile(Write("")), "");
}

// Such a file says that it has no bytes.
TEST_F(ProcFileTest, ReadsAFileOfTheKernel) {
  ASSERT_EQ(fs::file_size("/proc/self/status"), 0u);
  EXPECT_THAT(ReadProcFile("/proc/self/status"),
              testing::HasSubstr("\nPid:\t" + std::to_string(getpid()) + "\n"));
}

TEST_F(ProcFileTest, ReadsANumber) {
  EXPECT_EQ(NumberOf("1073741824\n"), 1073741824);
  EXPECT_EQ(NumberOf(" 5 "), 5);
  EXPECT_EQ(NumberOf("-1\n"), -1);
  EXPECT_EQ(NumberOf("9223372036854775807"),
            std::numeric_limits<int64_t>::max());
}

TEST_F(ProcFileTest, WhatIsNoNumberIsNone) {
  for (const char* text : {"", "\n", "max\n", "50000 100000\n", "5 kB\n",
                           "1.5\n", "9223372036854775808\n"}) {
    EXPECT_FALSE(NumberOf(text).has_value()) << text;
  }
}

// A directory opens, and then cannot be read.
TEST_F(ProcFileTest, WhatCannotBeReadIsEmpty) {
  for (const std::string& path : {dir_ + "/nothing", dir_}) {
    EXPECT_EQ(ReadProcFile(path), "") << path;
    EXPECT_FALSE(ReadProcNumber(path).has_value()) << path;
  }
}

}  // namespace
}  // namespace baton::process
