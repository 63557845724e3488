#include "cli/local_cluster.h"

#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "cli/prometheus_targets.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/process/process.h"

namespace baton::cli {
namespace {

using ::testing::HasSubstr;
using Kind = ClusterEvent::Kind;

constexpr absl::Duration kLong = absl::Seconds(30);

class LocalClusterTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    process::SetUpSignals(/*die_with_parent=*/false);
  }

  void SetUp() override {
    std::string dir = testing::TempDir() + "/cluster-XXXXXX";
    ASSERT_NE(mkdtemp(dir.data()), nullptr);
    options_.log_dir = options_.program_dir = dir;
    unsetenv("CUDA_VISIBLE_DEVICES");
    options_.num_prefill = 2;
    options_.model_dir = "well";
    for (const char* name : {"baton-prefill", "baton-decode", "baton-router"}) {
      std::filesystem::create_symlink(BATON_BINARY_DIR "/tests/bin/fake-member",
                                      dir + "/" + name);
    }
  }
  void TearDown() override {
    cluster_.reset();
    std::filesystem::remove_all(options_.log_dir);
  }

  void MakeCluster() { cluster_ = std::make_unique<LocalCluster>(options_); }
  ClusterEvent Next(absl::Duration timeout = kLong) {
    return cluster_->Next(Clock::Monotonic()->Now() + timeout);
  }
  // All workers and the router, ready.
  void StartAll() {
    MakeCluster();
    ASSERT_TRUE(cluster_->StartWorkers().ok());
    for (int i = 0; i < 3; ++i) ASSERT_EQ(Next().kind, Kind::kReady);
    ASSERT_TRUE(cluster_->AllWorkersReady());
    ASSERT_TRUE(cluster_->StartRouter().ok());
    ASSERT_EQ(Next().kind, Kind::kReady);
  }
  size_t IndexOf(const std::string& name) {
    for (size_t i = 0; i < cluster_->members().size(); ++i) {
      if (cluster_->member(i).process->name() == name) return i;
    }
    ADD_FAILURE() << "no member " << name;
    return 0;
  }

  LocalClusterOptions options_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(LocalClusterTest, StartsAllAndEndsAll) {
  StartAll();
  std::set<std::string> names;
  for (const Member& member : cluster_->members()) {
    names.insert(member.process->name());
  }
  EXPECT_EQ(names, (std::set<std::string>{"decode-0", "prefill-0", "prefill-1",
                                          "router"}));
  // The router was told where the workers are.
  EXPECT_EQ(cluster_->members().back().process->ready().at("prefill"),
            "127.0.0.1:1");
  EXPECT_EQ(Next(absl::Milliseconds(10)).kind, Kind::kTimeout);
  EXPECT_TRUE(cluster_->Stop(kLong));
}

TEST_F(LocalClusterTest, EachWorkerSeesItsGpus) {
  options_.gpus = {{"0", "2"}, {"3", "4"}, {"0", "2"}};
  StartAll();
  std::map<std::string, std::string> seen;
  for (const Member& member : cluster_->members()) {
    seen[member.process->name()] = member.process->ready().at("gpus");
  }
  EXPECT_EQ(seen, (std::map<std::string, std::string>{{"prefill-0", "0,2"},
                                                      {"prefill-1", "3,4"},
                                                      {"decode-0", "0,2"},
                                                      {"router", "unset"}}));
  EXPECT_TRUE(cluster_->Stop(kLong));
}

TEST_F(LocalClusterTest, ReportsADeathOnce) {
  StartAll();
  const size_t victim = IndexOf("prefill-1");
  cluster_->member(victim).process->Signal(SIGKILL);
  const ClusterEvent event = Next();
  ASSERT_EQ(event.kind, Kind::kExited);
  EXPECT_EQ(event.member, victim);
  EXPECT_EQ(cluster_->member(victim).process->Poll()->signal, SIGKILL);
  EXPECT_EQ(cluster_->NumLivePrefill(), 1);
  EXPECT_EQ(cluster_->NumLiveDecode(), 1);
  EXPECT_EQ(Next(absl::Milliseconds(10)).kind, Kind::kTimeout);
  EXPECT_TRUE(cluster_->Stop(kLong));
}

TEST_F(LocalClusterTest, ReportsAWorkerThatCannotStart) {
  options_.model_dir = "fails:decode-0";
  MakeCluster();
  ASSERT_TRUE(cluster_->StartWorkers().ok());
  ClusterEvent event = Next();
  while (event.kind == Kind::kReady) event = Next();
  ASSERT_EQ(event.kind, Kind::kExited);
  const ChildProcess& process = *cluster_->member(event.member).process;
  EXPECT_EQ(process.name(), "decode-0");
  EXPECT_THAT(process.LogTail(5), HasSubstr("the model is no good"));
}

TEST_F(LocalClusterTest, SignalsAreEvents) {
  StartAll();
  kill(getpid(), SIGINT);
  EXPECT_EQ(Next().kind, Kind::kStopSignal);
  EXPECT_TRUE(cluster_->Stop(kLong));
}

TEST_F(LocalClusterTest, StopIsBounded) {
  options_.model_dir = "stubborn:decode-0";
  StartAll();
  EXPECT_FALSE(cluster_->Stop(absl::Milliseconds(200)));
  EXPECT_EQ(cluster_->member(IndexOf("decode-0")).process->Poll()->signal,
            SIGKILL);
}

TEST_F(LocalClusterTest, ASecondSignalEndsTheWaiting) {
  options_.model_dir = "stubborn:decode-0";
  StartAll();
  kill(getpid(), SIGTERM);
  const absl::Time before = Clock::Monotonic()->Now();
  EXPECT_FALSE(cluster_->Stop(absl::Minutes(5)));
  EXPECT_LT(Clock::Monotonic()->Now() - before, absl::Minutes(1));
}

TEST(CheckAddressIsFreeTest, KnowsAPortInUse) {
  EXPECT_TRUE(CheckAddressIsFree("127.0.0.1:0").ok());
  EXPECT_FALSE(CheckAddressIsFree("127.0.0.1").ok());
  const OwnedFd listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size),
            0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  ASSERT_EQ(
      getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size),
      0);
  const std::string text = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const absl::Status status = CheckAddressIsFree(text);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST_F(LocalClusterTest, PrometheusFindsWhatServesMetrics) {
  StartAll();
  const std::string path = options_.log_dir + "/targets.json";
  ASSERT_TRUE(WritePrometheusTargets(path, cluster_->members()).ok());
  std::ifstream in(path);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const nlohmann::json groups = nlohmann::json::parse(text);
  EXPECT_EQ(groups, nlohmann::json::parse(R"([
    {"targets": ["decode-0:9"], "labels": {"pool": "decode"}},
    {"targets": ["prefill-0:9", "prefill-1:9"], "labels": {"pool": "prefill"}},
    {"targets": ["router:9"], "labels": {"pool": "router"}}])"));
  EXPECT_THAT(
      WritePrometheusTargets(options_.log_dir + "/none/x", cluster_->members())
          .message(),
      HasSubstr("/none/x"));
}

}  // namespace
}  // namespace baton::cli
