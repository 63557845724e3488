#include "model_tools/output_directory.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_dir.h"

namespace baton::model_tools {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class OutputDirectoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = scratch_.path() + "/output_directory_test";
    fs::create_directory(root_);
    dir_ = root_ + "/model";
  }

  // Makes it with a file of this text.
  absl::Status Make(const std::string& text, bool replace) {
    auto output = OutputDirectory::Begin(dir_, "marker", replace);
    if (!output.ok()) return output.status();
    std::ofstream(output->File("text")) << text;
    return output->Commit();
  }

  std::string Text() const {
    std::ifstream in(dir_ + "/text");
    return {std::istreambuf_iterator<char>(in), {}};
  }

  test::ScratchDir scratch_;
  std::string root_;
  std::string dir_;
};

TEST_F(OutputDirectoryTest, IsThereWholeOrNotAtAll) {
  {
    auto output = OutputDirectory::Begin(dir_ + "/", "marker", false);
    ASSERT_TRUE(output.ok()) << output.status();
    EXPECT_EQ(output->path(), dir_ + ".partial");
    EXPECT_TRUE(fs::exists(dir_ + ".partial/marker"));
    EXPECT_FALSE(fs::exists(dir_));
  }
  EXPECT_FALSE(fs::exists(dir_ + ".partial"));
  ASSERT_TRUE(Make("one", false).ok());
  EXPECT_EQ(Text(), "one");
  EXPECT_FALSE(fs::exists(dir_ + ".partial"));
}

TEST_F(OutputDirectoryTest, ReplacesOnlyItsOwn) {
  ASSERT_TRUE(Make("one", false).ok());
  const absl::Status again = Make("two", false);
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--replace"));
  EXPECT_EQ(Text(), "one");
  ASSERT_TRUE(Make("two", true).ok());
  EXPECT_EQ(Text(), "two");
  fs::remove(dir_ + "/marker");
  EXPECT_EQ(Make("three", true).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(Text(), "two");
}

TEST_F(OutputDirectoryTest, SaysThatTheDiskIsTooSmall) {
  auto output = OutputDirectory::Begin(dir_, "marker", false);
  ASSERT_TRUE(output.ok()) << output.status();
  EXPECT_TRUE(output->CheckSpace(1).ok());
  const absl::Status huge = output->CheckSpace(int64_t{1} << 60);
  EXPECT_EQ(huge.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(huge.message()), HasSubstr("no space for " + dir_));
}

}  // namespace
}  // namespace baton::model_tools
