// Workers that come and go in DNS while requests run: real programs, and a name
// server that answers them.
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"
#include "tests/support/dns_server.h"
#include "tests/support/own_loopback.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

class DiscoveryTest : public StreamsTest {
 protected:
  // Loopback addresses that no other process uses, 0 to 2.
  static std::string Ip(int number) {
    // OwnLoopback has 127.64.0.0/10; the two next to it are as free.
    std::vector<std::string> parts = absl::StrSplit(OwnLoopback(), '.');
    int second = 0;
    EXPECT_TRUE(absl::SimpleAtoi(parts[1], &second));
    parts[1] = absl::StrCat(second + 64 * number);
    return absl::StrJoin(parts, ".");
  }

  // Starts a worker there, at the port of its pool.
  void Launch(const std::string& role, int number, const Flags& flags = {}) {
    std::string& port = ports_[role];
    const std::string name = absl::StrCat(role, "-", number);
    Flags all = {"--listen",
                 absl::StrCat(Ip(number), ":", port.empty() ? "0" : port)};
    all.insert(all.end(), flags.begin(), flags.end());
    const auto worker =
        cluster_->Launch(absl::StrCat("baton-", role), name, all);
    ASSERT_TRUE(worker.ok()) << worker.status();
    ASSERT_TRUE((*worker)->WaitReady(kPatience).ok());
    const std::string address = cluster_->Address(name, "grpc");
    port = address.substr(address.rfind(':') + 1);
  }

  void SetUp() override {
    StreamsTest::SetUp();
    cluster_ = std::make_unique<Cluster>(model_dir_);
    ASSERT_NO_FATAL_FAILURE(Launch("prefill", 0));
    ASSERT_NO_FATAL_FAILURE(Launch("decode", 0));
  }

  void StartRouter() {
    const auto router = cluster_->Launch(
        "baton-router", "router",
        {"--prefill", absl::StrCat("dns:prefill.test:", ports_["prefill"]),
         "--decode", absl::StrCat("dns:decode.test:", ports_["decode"]),
         "--discovery-server", dns_.address(), "--discovery-interval", "0.1"});
    ASSERT_TRUE(router.ok()) << router.status();
    ASSERT_TRUE((*router)->WaitReady(kPatience).ok());
    stub_ = cluster_->MakeStub();
  }

  double Metric(const std::string& name) {
    const auto text =
        HttpGet(cluster_->Address("router", "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << text.status();
    return text.ok() ? MetricValue(*text, name) : -1;
  }

  // What `baton doctor` shows.
  std::string Doctor() {
    return RunProgram("baton", {"doctor", "--router",
                                cluster_->Address("router", "grpc")})
        .out;
  }

  DnsServer dns_;
  std::map<std::string, std::string> ports_;
};

TEST_F(DiscoveryTest, PoolsGrowAndShrinkWhileRequestsRun) {
  dns_.Set("prefill.test", {Ip(0)});
  dns_.Set("decode.test", {Ip(0)});
  ASSERT_NO_FATAL_FAILURE(StartRouter());
  CheckJoined(1, 1);
  const auto requests = MakeRequests();

  // One more of each comes.
  CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                 Launch("prefill", 1);
                 Launch("decode", 1);
                 dns_.Set("prefill.test", {Ip(0), Ip(1)});
                 dns_.Set("decode.test", {Ip(0), Ip(1)});
               }));
  CheckJoined(2, 2);
  EXPECT_THAT(Doctor(), HasSubstr("decode-1"));

  // The first ones end as pods do: they are told to, and DNS forgets them.
  // Their streams go on, or are placed again.
  CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                 dns_.Set("prefill.test", {Ip(1)});
                 dns_.Set("decode.test", {Ip(1)});
                 cluster_->process("prefill-0").Signal(SIGTERM);
                 cluster_->process("decode-0").Signal(SIGTERM);
               }));
  CheckJoined(1, 1);
  EXPECT_TRUE(Eventually([&] {
    return !absl::StrContains(Doctor(), "decode-0");
  })) << Doctor();
  EXPECT_TRUE(Eventually(
      [&] { return Metric("baton_router_discovered_workers") == 1; }));
  CheckServes();
}

// Without a word of its own: nothing new goes there, what runs there ends well.
TEST_F(DiscoveryTest, AWorkerThatDnsForgetsLosesNoRequest) {
  ASSERT_NO_FATAL_FAILURE(Launch("decode", 1));
  dns_.Set("prefill.test", {Ip(0)});
  dns_.Set("decode.test", {Ip(0), Ip(1)});
  ASSERT_NO_FATAL_FAILURE(StartRouter());
  CheckJoined(1, 2);
  const auto requests = MakeRequests();
  const int again = CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                                   dns_.Set("decode.test", {Ip(1)});
                                 }));
  EXPECT_EQ(again, 0);
  CheckJoined(1, 1);
  EXPECT_TRUE(Eventually([&] {
    return !absl::StrContains(Doctor(), "decode-0");
  })) << Doctor();
  // It comes back.
  dns_.Set("decode.test", {Ip(0), Ip(1)});
  CheckJoined(1, 2);
  CheckServes();
}

TEST_F(DiscoveryTest, AServerThatFailsTakesNothingAway) {
  dns_.Set("prefill.test", {Ip(0)});
  dns_.Set("decode.test", {Ip(0)});
  // Not even its absence at the start.
  dns_.SetMode(DnsServer::Mode::kServerFailure);
  ASSERT_NO_FATAL_FAILURE(StartRouter());
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(cluster_->process("router").Log(),
                             "looking up dns:decode.test:");
  }));
  dns_.SetMode(DnsServer::Mode::kTable);
  CheckJoined(1, 1);
  CheckServes();
  for (const DnsServer::Mode mode :
       {DnsServer::Mode::kServerFailure, DnsServer::Mode::kSilent}) {
    dns_.SetMode(mode);
    const int asked = dns_.num_questions();
    EXPECT_TRUE(Eventually([&] { return dns_.num_questions() > asked + 4; }));
    CheckServes();
  }
  CheckJoined(1, 1);
}

TEST(DiscoveryFlagsTest, ErrorsNameTheFlag) {
  const auto error = [](const Flags& more) {
    Flags flags = {"--model", "none"};
    flags.insert(flags.end(), more.begin(), more.end());
    const RunResult result = RunProgram("baton-router", flags);
    EXPECT_FALSE(result.exit.clean());
    return absl::StrCat(result.out, result.err);
  };
  EXPECT_THAT(error({"--decode", "dns:name"}),
              AllOf(HasSubstr("--decode"), HasSubstr("it has no port")));
  EXPECT_THAT(error({"--decode", "a:1", "--prefill", "dns:a:0"}),
              AllOf(HasSubstr("--prefill"), HasSubstr("the port must be")));
  EXPECT_THAT(error({"--decode", "dns:a:1", "--discovery-server", "a:53"}),
              AllOf(HasSubstr("--discovery-server"), HasSubstr("IP:PORT")));
  EXPECT_THAT(error({"--decode", "dns:a:1", "--discovery-interval", "0"}),
              HasSubstr("--discovery-interval"));
}

}  // namespace
}  // namespace baton::test
