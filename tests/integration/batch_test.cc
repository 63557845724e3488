// `baton batch` against a cluster.
#include <csignal>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/child_process.h"
#include "common/json.h"
#include "tests/integration/cluster.h"
#include "tests/support/test_certificates.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class BatchTest : public testing::Test {
 protected:
  void StartCluster(
      const ClusterShape& shape,
      std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr) {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    cluster_ = std::make_unique<Cluster>(model_dir);
    if (credentials != nullptr) cluster_->set_credentials(credentials);
    const absl::Status started = cluster_->Start(shape);
    ASSERT_TRUE(started.ok()) << started;
  }

  // `count` prompts of different lengths, the same answers every time.
  void WriteRequests(int count, int max_tokens) {
    std::ofstream out(Path("requests"));
    for (int i = 0; i < count; ++i) {
      json prompt = json::array();
      for (int t = 0; t < 3 + i % 9; ++t)
        prompt.push_back(1 + (i + 7 * t) % 60);
      out << json{{"custom_id", absl::StrCat("q", i)},
                  {"method", "POST"},
                  {"url", "/v1/completions"},
                  {"body",
                   {{"prompt", prompt},
                    {"max_tokens", max_tokens},
                    {"ignore_eos", true},
                    {"temperature", 1},
                    {"seed", i}}}}
          << "\n";
    }
  }

  std::string Path(const std::string& name) const {
    return scratch_.path() + "/" + name;
  }

  Flags Batch(const std::string& results, Flags more) const {
    Flags flags = {"batch", Path("requests"), Path(results), "--url",
                   "http://" + cluster_->Address("router", "http")};
    flags.insert(flags.end(), more.begin(), more.end());
    return flags;
  }

  // What the file has, by custom_id; each has status 200.
  std::map<std::string, json> Answers(const std::string& results) const {
    std::map<std::string, json> answers;
    std::ifstream in(Path(results));
    std::string line;
    while (std::getline(in, line)) {
      const json result = json::parse(line);
      EXPECT_EQ(result["response"]["status_code"], 200) << line;
      EXPECT_TRUE(answers
                      .emplace(result["custom_id"],
                               result["response"]["body"]["choices"][0]["text"])
                      .second)
          << line;
    }
    return answers;
  }

  const ScratchDir scratch_;
  std::unique_ptr<Cluster> cluster_;
};

TEST_F(BatchTest, AnswersAsWhoAsksOneByOneGetsThem) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({}));
  WriteRequests(40, 8);
  const RunResult many = RunProgram("baton", Batch("many", {}));
  EXPECT_TRUE(many.exit.clean()) << many.err;
  EXPECT_THAT(many.err, HasSubstr("40 of 40 requests answered; "));
  EXPECT_THAT(many.err, HasSubstr(" 320 output tokens"));
  const RunResult single =
      RunProgram("baton", Batch("single", {"--max-in-flight", "1", "-q"}));
  EXPECT_TRUE(single.exit.clean()) << single.err;
  EXPECT_EQ(single.err, "");
  EXPECT_EQ(Answers("many").size(), 40u);
  EXPECT_EQ(Answers("many"), Answers("single"));
  // They are of the class that gives way to others.
  const std::string log = cluster_->process("router").Log();
  EXPECT_THAT(log, HasSubstr(" class=batch "));
  EXPECT_THAT(log, Not(HasSubstr(" class=interactive ")));
}

TEST_F(BatchTest, WhatARouterRefusesIsAskedAgain) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.decode = {{"--max-sequences", "1"}},
                    .router = {"--max-waiting-requests", "1"}}));
  WriteRequests(10, 20);
  const RunResult run =
      RunProgram("baton", Batch("results", {"--max-in-flight", "10"}));
  EXPECT_TRUE(run.exit.clean()) << run.err;
  EXPECT_THAT(run.err, HasSubstr("10 of 10 requests answered"));
  EXPECT_THAT(run.err, HasSubstr("asked again"));
  EXPECT_EQ(Answers("results").size(), 10u);
}

TEST_F(BatchTest, GoesOnWhereCtrlCStoppedIt) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({}));
  WriteRequests(200, 20);
  Flags command = Batch("results", {"--max-in-flight", "1"});
  command.insert(command.begin(), ProgramPath("baton"));
  auto batch = cli::ChildProcess::Start({.name = "batch",
                                         .command = command,
                                         .log_path = Path("log"),
                                         .ready_line = false});
  ASSERT_TRUE(batch.ok()) << batch.status();
  EXPECT_TRUE(Eventually([&] { return !Answers("results").empty(); }));
  (*batch)->Signal(SIGINT);
  const auto exit = (*batch)->WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->code, 130) << (*batch)->Log();
  EXPECT_THAT((*batch)->Log(), HasSubstr("interrupted; --resume goes on"));
  const size_t before = Answers("results").size();
  EXPECT_GE(before, 1u);
  EXPECT_LT(before, 200u);

  const RunResult again = RunProgram("baton", Batch("results", {}));
  EXPECT_EQ(again.exit.code, 1);
  EXPECT_THAT(again.err, HasSubstr("--resume goes on with it"));
  const RunResult rest = RunProgram("baton", Batch("results", {"--resume"}));
  EXPECT_TRUE(rest.exit.clean()) << rest.err;
  EXPECT_THAT(rest.err, HasSubstr(absl::StrCat("200 of 200 requests answered, ",
                                               before, " of them before")));
  EXPECT_EQ(Answers("results").size(), 200u);
}

TEST_F(BatchTest, OverHttpsWithAKey) {
  TestCa front("front");
  TestCa stranger("stranger");
  const CertificateAndKey certificate = front.Issue();
  WriteFileAtOnce(Path("front.pem"), certificate.certificate);
  WriteFileAtOnce(Path("front.key"), certificate.key);
  WriteFileAtOnce(Path("front_ca.pem"), front.certificate());
  WriteFileAtOnce(Path("stranger.pem"), stranger.certificate());
  const RunResult made = RunProgram("baton", {"key", "alice"});
  const std::vector<std::string> lines = absl::StrSplit(made.out, '\n');
  ASSERT_EQ(lines.size(), 3u) << made.err;
  WriteFileAtOnce(Path("keys"), lines[1] + "\n");
  const std::string& key = lines[0];
  ASSERT_NO_FATAL_FAILURE(StartCluster(
      {.router = {"--tls-cert", Path("front.pem"), "--tls-key",
                  Path("front.key"), "--api-keys", Path("keys")}},
      grpc::CompositeChannelCredentials(
          grpc::SslCredentials({.pem_root_certs = front.certificate()}),
          grpc::AccessTokenCredentials(key))));
  WriteRequests(3, 2);
  const auto batch = [&](const std::string& ca, const std::string& with_key) {
    return RunProgram(
        "baton", {"batch", Path("requests"), Path("results"), "--url",
                  "https://" + cluster_->Address("router", "http"), "--tls-ca",
                  Path(ca), "--api-key", with_key});
  };
  const RunResult no_key = batch("front_ca.pem", "sk-none");
  EXPECT_EQ(no_key.exit.code, 1);
  EXPECT_THAT(no_key.err, HasSubstr("does not take the API key"));
  const RunResult no_trust = batch("stranger.pem", key);
  EXPECT_EQ(no_trust.exit.code, 1);
  EXPECT_THAT(no_trust.err, HasSubstr("certificate"));
  const RunResult good = batch("front_ca.pem", key);
  EXPECT_TRUE(good.exit.clean()) << good.err;
  EXPECT_EQ(Answers("results").size(), 3u);
}

TEST_F(BatchTest, WhatIsWrongIsSaidBeforeAnybodyIsAsked) {
  std::ofstream(Path("requests")) << "{\"custom_id\": \"a\"}\n";
  const RunResult run =
      RunProgram("baton", {"batch", Path("requests"), Path("results"), "--url",
                           "http://127.0.0.1:1"});
  EXPECT_EQ(run.exit.code, 2);
  EXPECT_THAT(run.err, HasSubstr("requests:1: \"url\" is missing"));
  EXPECT_FALSE(std::ifstream(Path("results")).is_open());
}

}  // namespace
}  // namespace baton::test
