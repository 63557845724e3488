#include "common/output_file.h"

#include <cerrno>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

TEST(OutputFileTest, HoldsWhatWasWritten) {
  const test::ScratchDir scratch;
  const std::string path = scratch.path() + "/file";
  ASSERT_TRUE(WriteTextFile(path, "a longer text that was there").ok());
  auto file = OutputFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  OutputFile moved = *std::move(file);
  EXPECT_TRUE(moved.Write("one ").ok());
  EXPECT_TRUE(moved.Write("two").ok());
  EXPECT_TRUE(moved.SyncAndDrop().ok());
  EXPECT_TRUE(moved.Close().ok());
  std::ifstream in(path);
  EXPECT_EQ((std::string{std::istreambuf_iterator<char>(in), {}}), "one two");
}

TEST(OutputFileTest, SaysThatTheDiskIsFull) {
  const absl::Status status = WriteTextFile("/dev/full", "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("cannot write /dev/full: No space"));
}

TEST(OutputFileTest, NamesThePath) {
  const absl::Status status = WriteTextFile("/nowhere/file", "text");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("cannot create /nowhere/file"));
  EXPECT_EQ(FileError(EDQUOT, "cannot write", "x").code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton
