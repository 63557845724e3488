// `baton up`, `baton generate` and `baton model` as a user runs them.
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/log.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// The processes that a `baton up` started, watched from outside.
class Members final {
 public:
  explicit Members(const cli::ReadyFields& ready) {
    for (const auto& [name, value] : ready) {
      pid_t pid = 0;
      if (!absl::StartsWith(name, "pid.") || !absl::SimpleAtoi(value, &pid)) {
        continue;
      }
      pids_[name.substr(4)] = pid;
      fds_.emplace_back(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    }
  }

  size_t size() const { return pids_.size(); }
  pid_t pid(const std::string& name) const { return pids_.at(name); }

  // Whether all have ended, or do within the patience.
  bool AllEnd() const {
    for (const cli::OwnedFd& fd : fds_) {
      pollfd wait = {fd.get(), POLLIN, 0};
      const auto ms = static_cast<int>(absl::ToInt64Milliseconds(kPatience));
      if (poll(&wait, 1, ms) != 1) return false;
    }
    return true;
  }

 private:
  std::map<std::string, pid_t> pids_;
  std::vector<cli::OwnedFd> fds_;
};

class UpTest : public testing::Test {
 protected:
  void SetUp() override {
    // Logs of clusters that did not end well go with the test.
    const char* old = getenv("TMPDIR");
    if (old != nullptr) old_tmpdir_ = old;
    setenv("TMPDIR", scratch_.path().c_str(), /*overwrite=*/1);
    model_dir_ = scratch_.path() + "/tiny";
    ASSERT_TRUE(WriteTinyModel(model_dir_).ok());
  }

  void TearDown() override {
    if (old_tmpdir_.has_value()) {
      setenv("TMPDIR", old_tmpdir_->c_str(), /*overwrite=*/1);
    } else {
      unsetenv("TMPDIR");
    }
  }

  std::unique_ptr<cli::ChildProcess> Launch(const Flags& flags) {
    cli::ChildOptions options;
    options.name = "up";
    options.command = {ProgramPath("baton"), "up", "--listen", "127.0.0.1:0",
                       "--die-with-parent"};
    options.command.insert(options.command.end(), flags.begin(), flags.end());
    options.log_path = scratch_.path() + "/up.log";
    auto process = cli::ChildProcess::Start(std::move(options));
    EXPECT_TRUE(process.ok()) << process.status();
    return *std::move(process);
  }

  // A prefill and a decode worker.
  void Start() { Start({"--prefill", "1", "--decode", "1"}); }

  void Start(Flags flags) {
    // With the default a story needs no hand-off.
    flags.insert(flags.end(),
                 {"--model", model_dir_, "--placement", "least-load"});
    up_ = Launch(flags);
    const absl::Status ready = up_->WaitReady(kPatience);
    ASSERT_TRUE(ready.ok()) << ready;
    members_ = std::make_unique<Members>(up_->ready());
  }

  RunResult Baton(const std::string& command, Flags flags) {
    CHECK(up_->is_ready());
    flags.insert(flags.begin(),
                 {command, "--address", up_->ready().at("grpc")});
    return RunProgram("baton", flags);
  }

  ScratchDir scratch_;
  std::optional<std::string> old_tmpdir_;
  std::string model_dir_;
  std::unique_ptr<cli::ChildProcess> up_;
  std::unique_ptr<Members> members_;
};

TEST_F(UpTest, GeneratesAndEndsOnCtrlC) {
  ASSERT_NO_FATAL_FAILURE(Start());
  EXPECT_EQ(members_->size(), 3u);
  const RunResult told = Baton(
      "generate", {"Once", "--greedy", "--max-tokens", "12", "--ignore-eos"});
  EXPECT_TRUE(told.exit.clean()) << told.err;
  EXPECT_NE(told.out, "");
  EXPECT_THAT(told.err, StartsWith("12 tokens after a prompt of 5"));
  EXPECT_THAT(told.err, HasSubstr("prefill-0 -> decode-0"));
  EXPECT_THAT(told.err, HasSubstr("KV hand-off"));

  const RunResult again = Baton("generate", {"Once", "--greedy", "--max-tokens",
                                             "12", "--ignore-eos", "--quiet"});
  EXPECT_EQ(again.out, told.out);
  EXPECT_EQ(again.err, "");

  const RunResult model = Baton("model", {});
  EXPECT_TRUE(model.exit.clean()) << model.err;
  EXPECT_THAT(model.out, HasSubstr("name             tiny\n"));
  EXPECT_THAT(model.out, HasSubstr("prefill workers  1\n"));

  up_->Signal(SIGINT);
  const auto exit = up_->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 0") << up_->LogTail(30);
  EXPECT_TRUE(members_->AllEnd());
  // A clean end leaves no logs.
  EXPECT_NE(access(up_->ready().at("log_dir").c_str(), F_OK), 0);
}

TEST_F(UpTest, JsonHasTheTokensOfTheReference) {
  ASSERT_NO_FATAL_FAILURE(
      Start({"--prefill", "2", "--decode", "2", "--threads", "1", "--kv-memory",
             "8MiB", "--log-dir", scratch_.path() + "/logs"}));
  const RunResult run =
      Baton("generate", {"--tokens", "7,8,9", "--greedy", "--max-tokens", "9",
                         "--ignore-eos", "--json"});
  EXPECT_TRUE(run.exit.clean()) << run.err;
  std::vector<TokenId> tokens;
  for (absl::string_view line : absl::StrSplit(run.out, '\n')) {
    if (line.empty()) continue;
    v1::GenerateResponse response;
    ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(std::string(line),
                                                            &response)
                    .ok())
        << line;
    tokens.insert(tokens.end(), response.token_ids().begin(),
                  response.token_ids().end());
  }
  auto reference = Reference::Load(model_dir_);
  ASSERT_TRUE(reference.ok()) << reference.status();
  EXPECT_EQ(tokens, (*reference)->Tokens(GreedyRequest({7, 8, 9}, 9)));
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");
  // A folder that the user named stays.
  EXPECT_EQ(access((scratch_.path() + "/logs/router.log").c_str(), F_OK), 0);
}

TEST_F(UpTest, AGgufFileAnswersAsItsDirectory) {
  const std::string file = scratch_.path() + "/tiny.gguf";
  std::ifstream tokenizer(model_dir_ + "/tokenizer.json");
  test::GgufWriter writer = test::GgufOfModelDir(model_dir_);
  test::AddGgufTokenizer(nlohmann::json::parse(tokenizer), "gpt-2", writer);
  writer.AddBool("tokenizer.ggml.add_bos_token", true);
  std::ofstream(file, std::ios::binary) << writer.Finish();
  const Flags generate = {"Once", "--greedy",     "--max-tokens",
                          "12",   "--ignore-eos", "--quiet"};
  ASSERT_NO_FATAL_FAILURE(Start());
  const RunResult from_directory = Baton("generate", generate);
  EXPECT_TRUE(from_directory.exit.clean()) << from_directory.err;
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");

  model_dir_ = file;
  ASSERT_NO_FATAL_FAILURE(Start());
  const RunResult from_file = Baton("generate", generate);
  EXPECT_TRUE(from_file.exit.clean()) << from_file.err;
  EXPECT_EQ(from_file.out, from_directory.out);
  const RunResult model = Baton("model", {});
  EXPECT_THAT(model.out, HasSubstr("name             tiny\n"));
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");
}

TEST_F(UpTest, AdaptersAreModels) {
  const std::string dir = scratch_.path() + "/poems";
  ASSERT_TRUE(WriteTinyAdapter(dir, model_dir_).ok());
  ASSERT_NO_FATAL_FAILURE(
      Start({"--dual", "1", "--adapter", dir, "--adapter", "sql=" + dir}));
  EXPECT_THAT(up_->Log(), HasSubstr("Adapters: poems, sql\n"));
  const auto said = [&](const Flags& model) {
    Flags flags = {"Once", "--greedy",     "--max-tokens",
                   "12",   "--ignore-eos", "--quiet"};
    flags.insert(flags.end(), model.begin(), model.end());
    const RunResult run = Baton("generate", flags);
    EXPECT_TRUE(run.exit.clean()) << run.err;
    return run.out;
  };
  EXPECT_NE(said({"--model", "sql"}), said({}));
  EXPECT_EQ(said({"--model", "sql"}), said({"--model", "poems"}));
  EXPECT_THAT(Baton("model", {}).out,
              HasSubstr("adapters         poems, sql\n"));
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");
}

TEST_F(UpTest, ARefusedRequestIsAnError) {
  ASSERT_NO_FATAL_FAILURE(Start());
  const RunResult run = Baton("generate", {"hi", "--top-p", "7"});
  EXPECT_EQ(run.exit.Describe(), "exit status 1");
  EXPECT_EQ(run.out, "\n");
  EXPECT_THAT(run.err, StartsWith("baton generate: INVALID_ARGUMENT: "));
  EXPECT_THAT(run.err, HasSubstr("top_p"));
}

TEST_F(UpTest, AKilledUpLeavesNoOrphan) {
  ASSERT_NO_FATAL_FAILURE(Start());
  up_->Signal(SIGKILL);
  ASSERT_TRUE(up_->WaitExit(kPatience).ok());
  EXPECT_TRUE(members_->AllEnd());
}

TEST_F(UpTest, GoesOnWithoutASpareWorker) {
  ASSERT_NO_FATAL_FAILURE(Start({"--decode", "2"}));
  ASSERT_EQ(kill(members_->pid("decode-1"), SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(up_->Log(), "the cluster goes on");
  })) << up_->LogTail(20);
  EXPECT_THAT(up_->Log(), HasSubstr("decode-1 (pid "));
  EXPECT_THAT(up_->Log(), HasSubstr("killed by signal 9"));
  const RunResult run = Baton("generate", {"hi", "--max-tokens", "3"});
  EXPECT_TRUE(run.exit.clean()) << run.err;
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");
}

TEST_F(UpTest, DualWorkersServeByThemselves) {
  ASSERT_NO_FATAL_FAILURE(Start({"--dual", "2"}));
  EXPECT_EQ(members_->size(), 3u);
  EXPECT_THAT(up_->Log(), HasSubstr("Starting 2 dual workers"));
  EXPECT_THAT(up_->Log(), HasSubstr("0 prefill + 2 decode workers"));
  RunResult run = Baton("generate", {"hi", "--max-tokens", "3"});
  EXPECT_TRUE(run.exit.clean()) << run.err;
  ASSERT_EQ(kill(members_->pid("dual-0"), SIGKILL), 0);
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(up_->Log(),
                             "the cluster goes on with 1 dual workers");
  })) << up_->LogTail(20);
  run = Baton("generate", {"hi", "--max-tokens", "3"});
  EXPECT_TRUE(run.exit.clean()) << run.err;
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");

  ASSERT_NO_FATAL_FAILURE(Start({"--dual", "0", "--threads", "1"}));
  EXPECT_THAT(up_->Log(), HasSubstr("Starting 1 prefill + 1 decode workers"));
  EXPECT_EQ(up_->Stop(kPatience).Describe(), "exit status 0");

  up_ = Launch({"--model", model_dir_, "--prefill", "2", "--decode", "0"});
  const auto exit = up_->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 1");
  EXPECT_THAT(up_->Log(), HasSubstr("--decode 0"));
}

TEST_F(UpTest, EndsWhenItsOnlyDecodeWorkerOrItsRouterDies) {
  for (const char* victim : {"decode-0", "router"}) {
    ASSERT_NO_FATAL_FAILURE(Start());
    ASSERT_EQ(kill(members_->pid(victim), SIGKILL), 0);
    const auto exit = up_->WaitExit(kPatience);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->Describe(), "exit status 1") << victim;
    EXPECT_THAT(up_->Log(), HasSubstr(std::string(victim) + " (pid "));
    EXPECT_TRUE(members_->AllEnd());
  }
}

TEST_F(UpTest, SaysWhyItCannotStart) {
  // A folder that is no model: the workers say so.
  auto up = Launch({"--model", scratch_.path()});
  auto exit = up->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 1");
  EXPECT_THAT(up->Log(), HasSubstr("ended: exit status 1"));
  EXPECT_THAT(up->Log(), HasSubstr("config.json"));

  up = Launch({"--model", scratch_.path() + "/nothing"});
  exit = up->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 1");

  ASSERT_NO_FATAL_FAILURE(Start());
  const std::string address = up_->ready().at("grpc");
  const RunResult second =
      RunProgram("baton", {"up", "--model", model_dir_, "--listen", address});
  EXPECT_EQ(second.exit.Describe(), "exit status 1");
  EXPECT_THAT(second.err, HasSubstr(address));
  EXPECT_THAT(second.err, HasSubstr("in use"));
}

// The model that ships with the repository is found without --model, and
// tells a story.
TEST_F(UpTest, TheShippedModelTellsAStory) {
  up_ = Launch({});
  const absl::Status ready = up_->WaitReady(kPatience);
  ASSERT_TRUE(ready.ok()) << ready;
  EXPECT_THAT(up_->Log(), HasSubstr("Starting 2 dual workers"));
  const RunResult story =
      Baton("generate", {"Once upon a time", "--greedy", "--max-tokens", "40"});
  EXPECT_TRUE(story.exit.clean()) << story.err;
  EXPECT_THAT(story.out, HasSubstr("there was"));
}

}  // namespace
}  // namespace baton::test
