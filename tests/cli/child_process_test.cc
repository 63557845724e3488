#include "cli/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/await_that.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;

class ChildProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string dir = testing::TempDir() + "/child-XXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    dir_ = dir;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::unique_ptr<ChildProcess> Start(const std::string& behaviour) {
    auto child =
        ChildProcess::Start({"m",
                             {BATON_BINARY_DIR "/tests/bin/fake-member",
                              "--name", "m", "--model", behaviour},
                             dir_ + "/m.log"});
    EXPECT_TRUE(child.ok()) << child.status();
    return *std::move(child);
  }

  std::string dir_;
};

TEST_F(ChildProcessTest, IsReadyAndEndsOnSigterm) {
  const auto child = Start("well");
  ASSERT_TRUE(child->WaitReady(absl::Seconds(30)).ok());
  EXPECT_EQ(child->ready().at("grpc"), "127.0.0.1:1");
  EXPECT_EQ(child->ready_fd(), -1);
  EXPECT_FALSE(child->Poll().has_value());
  EXPECT_TRUE(child->Stop(absl::Seconds(30)).clean());
  EXPECT_TRUE(child->Poll()->clean());
  EXPECT_EQ(child->Log(), "m starts\n");
}

TEST_F(ChildProcessTest, HasOurEnvironmentButForWhatIsItsOwn) {
  setenv("CUDA_VISIBLE_DEVICES", "ours", 1);
  const auto seen = [&](const std::map<std::string, std::string>& own) {
    auto child = ChildProcess::Start(
        {.name = "m",
         .command = {BATON_BINARY_DIR "/tests/bin/fake-member", "--name", "m"},
         .log_path = dir_ + "/m.log",
         .environment = own});
    EXPECT_TRUE(child.ok()) << child.status();
    EXPECT_TRUE((*child)->WaitReady(absl::Seconds(30)).ok());
    return (*child)->ready().at("gpus");
  };
  EXPECT_EQ(seen({}), "ours");
  EXPECT_EQ(seen({{"CUDA_VISIBLE_DEVICES", "1,2"}}), "1,2");
  EXPECT_EQ(seen({{"CUDA_VISIBLE", "x"}}), "ours");
  unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(ChildProcessTest, TellsWhyItDidNotBecomeReady) {
  const auto child = Start("fails:m");
  const absl::Status status = child->WaitReady(absl::Seconds(30));
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("exit status 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("model is no good"));
  EXPECT_EQ(child->LogTail(1), "fake-member: the model is no good");
}

TEST_F(ChildProcessTest, WaitsEndAtTheirDeadline) {
  const auto mute = Start("mute:m");
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(mute->WaitReady(absl::Milliseconds(50))));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      mute->WaitExit(absl::Milliseconds(50)).status()));
}

TEST_F(ChildProcessTest, KillsWhatStays) {
  const auto child = Start("stubborn:m");
  ASSERT_TRUE(child->WaitReady(absl::Seconds(30)).ok());
  const ExitState state = child->Stop(absl::Milliseconds(100));
  EXPECT_EQ(state.signal, SIGKILL);
  EXPECT_EQ(state.Describe(), "killed by signal 9 (Killed)");
}

TEST_F(ChildProcessTest, ALineThatIsNoReadyLineIsNotReadiness) {
  const auto child = Start("babble:m");
  EXPECT_TRUE(test::AwaitThat([&] {
    child->ReadReady();
    return child->ready_fd() == -1;  // it has said all
  }));
  EXPECT_FALSE(child->is_ready());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(child->WaitReady(absl::Milliseconds(50))));
  EXPECT_FALSE(ParseReadyLine("").ok());
  EXPECT_FALSE(ParseReadyLine("[1]").ok());
  EXPECT_FALSE(ParseReadyLine(R"({"ready":false})").ok());
  EXPECT_FALSE(ParseReadyLine(R"({"ready":true)").ok());
  EXPECT_EQ(ParseReadyLine(R"({"ready":true,"a":"b","n":1})")->size(), 1u);
}

TEST_F(ChildProcessTest, AMissingProgramIsNotFound) {
  const auto child =
      ChildProcess::Start({"m", {dir_ + "/nothing"}, dir_ + "/m.log"});
  EXPECT_TRUE(absl::IsNotFound(child.status())) << child.status();
  EXPECT_THAT(std::string(child.status().message()), HasSubstr("/nothing"));
}

TEST_F(ChildProcessTest, TheDestructorLeavesNoProcess) {
  auto child = Start("stubborn:m");
  ASSERT_TRUE(child->WaitReady(absl::Seconds(30)).ok());
  const pid_t pid = child->pid();
  child.reset();
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a zombie is left";
}

// A parent that is killed takes its children along: even one whose --ready-fd
// pipe nobody reads any more.
TEST_F(ChildProcessTest, AKilledParentLeavesNoOrphan) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t parent = fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    close(ends[0]);
    // The grandchild inherits the write end, which is what the test waits on.
    const auto child = Start("well");
    if (!child->WaitReady(absl::Seconds(30)).ok()) _exit(1);
    const char ready = 'r';
    if (write(ends[1], &ready, 1) != 1) _exit(1);
    for (;;) pause();
  }
  close(ends[1]);
  char byte = 0;
  ASSERT_EQ(read(ends[0], &byte, 1), 1);
  ASSERT_EQ(kill(parent, SIGKILL), 0);
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  // The pipe ends when its last holder, the grandchild, is gone. Should it
  // stay, ctest's time limit ends this read.
  EXPECT_EQ(read(ends[0], &byte, 1), 0);
  close(ends[0]);
}

}  // namespace
}  // namespace baton::cli
