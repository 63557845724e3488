// Clusters whose KV goes over a slow network link, and over one that stands
// still for a while: decode-0 lives in a network namespace, and prefill-0
// reaches it over a SlowLink only.
#include <unistd.h>

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/network_namespace.h"
#include "tests/integration/slow_link.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// 20 Mbit/s, 20 ms each way.
constexpr LineOptions kDsl{.bytes_per_second = 2.5e6,
                           .delay = absl::Milliseconds(20),
                           .queue_bytes = 256 << 10};
// A dozen packets are enough to overflow it.
constexpr LineOptions kShallow{.bytes_per_second = 1e6,
                               .delay = absl::Milliseconds(10),
                               .queue_bytes = 16 << 10};

class SlowLinkTest : public StreamsTest {
 protected:
  void SetUp() override {
    if (!there_.made()) {
      GTEST_SKIP() << "network namespaces or veth links cannot be made here "
                      "(needs root and the ip command)";
    }
    StreamsTest::SetUp();
  }
  // Before the networks go.
  void TearDown() override { cluster_.reset(); }

  // Skips the test where there can be no such link.
  void MakeLink(const LineOptions& line) {
    auto link = SlowLink::Create({"", OurEnd() + "/24"},
                                 {there_.name(), TheirEnd() + "/24"}, line);
    if (!link.ok()) {
      GTEST_SKIP() << "no TUN devices here (needs root and /dev/net/tun): "
                   << link.status();
    }
    link_ = *std::move(link);
  }

  // prefill-0 here, decode-0 there, and there, where it has decode-0 on its own
  // host, prefill-1 if it is asked for.
  void StartAcross(bool with_fast_prefill) {
    cluster_ = std::make_unique<Cluster>(model_dir_);
    const std::string control = there_.Address(NetworkNamespace::kControl);
    for (const char* name : {"decode-0", "prefill-1"}) {
      cluster_->set_launcher(name,
                             {"/sbin/ip", "netns", "exec", there_.name()});
    }
    const Flags there = {"--listen",     control + ":0", "--metrics",
                         control + ":0", "--data-host",  TheirEnd()};
    std::vector<Flags> prefill = {{"--data-host", OurEnd()}};
    if (with_fast_prefill) prefill.push_back(there);
    StartCluster({.prefill = prefill, .decode = {there}});
  }

  std::optional<v1::LinkStatus> Link(const std::string& prefill) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetClusterResponse cluster;
    if (!stub_->GetCluster(&context, {}, &cluster).ok()) return std::nullopt;
    for (const v1::LinkStatus& link : cluster.links()) {
      if (link.prefill_worker() == prefill) return link;
    }
    return std::nullopt;
  }
  bool IsUsable(const std::string& prefill) {
    const auto link = Link(prefill);
    return link.has_value() && link->usable();
  }
  bool IsMeasured(const std::string& prefill) {
    const auto link = Link(prefill);
    return link.has_value() && link->bandwidth_bytes() > 0;
  }

  const NetworkNamespace there_;
  std::unique_ptr<SlowLink> link_;

 private:
  static std::string OurEnd() { return Net() + ".1"; }
  static std::string TheirEnd() { return Net() + ".2"; }
  static std::string Net() { return absl::StrCat("10.214.", getpid() % 250); }
};

struct SlowCase {
  std::string name;
  LineOptions line;
  bool loses_packets = false;
};

void PrintTo(const SlowCase& c, std::ostream* out) { *out << c.name; }

class SlowAnswersTest : public SlowLinkTest,
                        public testing::WithParamInterface<SlowCase> {};

TEST_P(SlowAnswersTest, AreThoseOfAnUndisturbedRun) {
  MakeLink(GetParam().line);
  if (IsSkipped()) return;
  StartAcross(/*with_fast_prefill=*/false);
  const auto requests = MakeRequests(/*count=*/16);
  EXPECT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  // It is that link that they took.
  int64_t kv_bytes = 0;
  for (const Answer& answer : answers) {
    kv_bytes += answer.last.timing().kv_transfer_bytes();
  }
  EXPECT_GT(kv_bytes, 0);
  EXPECT_GT(link_->stats().bytes_delivered, kv_bytes);
  if (GetParam().loses_packets) {
    EXPECT_GT(link_->stats().packets_dropped, 0);
  }
  AwaitBlocksFree({"prefill-0", "decode-0"});
}

INSTANTIATE_TEST_SUITE_P(Lines, SlowAnswersTest,
                         testing::Values(SlowCase{"Slow", kDsl},
                                         SlowCase{"SlowAndLossy", kShallow,
                                                  true}),
                         [](const auto& info) { return info.param.name; });

TEST_F(SlowLinkTest, IsMeasuredShownAndAvoided) {
  MakeLink(kDsl);
  if (IsSkipped()) return;
  StartAcross(/*with_fast_prefill=*/true);
  ASSERT_TRUE(Eventually(
      [&] { return IsMeasured("prefill-0") && IsMeasured("prefill-1"); }));
  // A machine that is busy while clusters start may have held up the first
  // measurement of the fast one, but not all that follow.
  constexpr double kMuchFaster = 10;
  v1::LinkStatus slow, fast;
  EXPECT_TRUE(Eventually([&] {
    slow = Link("prefill-0").value_or(v1::LinkStatus());
    fast = Link("prefill-1").value_or(v1::LinkStatus());
    return fast.bandwidth_bytes() > kMuchFaster * slow.bandwidth_bytes();
  })) << slow.bandwidth_bytes()
      << " and " << fast.bandwidth_bytes();
  EXPECT_GT(slow.bandwidth_bytes(), 0);
  EXPECT_GE(slow.latency_seconds(), absl::ToDoubleSeconds(kDsl.delay));
  RecordProperty("bytes_per_second", absl::StrCat(slow.bandwidth_bytes()));
  RecordProperty("latency_seconds", absl::StrCat(slow.latency_seconds()));

  const RunResult doctor = RunProgram(
      "baton", {"doctor", "--router", cluster_->Address("router", "grpc")});
  EXPECT_TRUE(doctor.exit.clean()) << doctor.err;
  EXPECT_THAT(doctor.out, AllOf(HasSubstr("note: prefill-0 to decode-0: "),
                                HasSubstr("the fastest link has")));

  // One after another, so that both prefill workers are idle each time. A load
  // report from the middle of a prompt may make them unequal now and then.
  constexpr int kRequests = 20;
  int took_the_fast_link = 0;
  for (int i = 0; i < kRequests; ++i) {
    const v1::GenerateRequest request = GreedyRequest({1, 2, 3 + i}, 4);
    const Answer answer = Generate(*stub_, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
    took_the_fast_link += answer.last.timing().prefill_worker() == "prefill-1";
  }
  // Turns would give it half.
  EXPECT_GE(took_the_fast_link, kRequests * 3 / 4);
  RecordProperty("took_the_fast_link", took_the_fast_link);
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0"});
}

// Nothing tells the workers of it: the devices stay up, packets are lost.
TEST_F(SlowLinkTest, StandsStillAndHeals) {
  MakeLink(kDsl);
  if (IsSkipped()) return;
  StartAcross(/*with_fast_prefill=*/true);
  const auto requests = MakeRequests();
  ASSERT_TRUE(Eventually(
      [&] { return IsUsable("prefill-0") && IsUsable("prefill-1"); }));
  const std::vector<Answer> before =
      RunAndInterrupt(requests, [&] { link_->Cut(); });
  int replaced = CheckAnswers(requests, before);
  // Some of these find out; then the pair is known to be down.
  const std::vector<Answer> during = RunAndInterrupt(requests, [] {});
  replaced += CheckAnswers(requests, during);
  // Or it was known before they came, on a machine on which streams take long.
  for (int round = 0; replaced == 0 && round < 3; ++round) {
    link_->Heal();
    ASSERT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
    link_->Cut();
    replaced = CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  }
  EXPECT_GT(replaced, 0) << "no hand-off met the cut";
  EXPECT_TRUE(Eventually([&] { return !IsUsable("prefill-0"); }));
  EXPECT_GT(link_->stats().packets_cut, 0);
  link_->Heal();
  EXPECT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  const std::vector<Answer> after = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, after);
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0"});
}

// There is no other: requests come through by the decode worker's own prefill,
// or once the link is back.
TEST_F(SlowLinkTest, StandsStillAndIsTheOnlyOne) {
  MakeLink(kDsl);
  if (IsSkipped()) return;
  StartAcross(/*with_fast_prefill=*/false);
  const auto requests = MakeRequests(/*count=*/12);
  ASSERT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  link_->Cut();
  const std::vector<Answer> during = RunAndInterrupt(requests, [] {});
  EXPECT_GT(CheckAnswers(requests, during), 0) << "no hand-off met the cut";
  link_->Heal();
  EXPECT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  const v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 10);
  const Answer answer = Generate(*stub_, request, kPatience);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.tokens, reference_->Tokens(request));
  EXPECT_EQ(answer.last.timing().prefill_worker(), "prefill-0");
  AwaitBlocksFree({"prefill-0", "decode-0"});
}

// Shorter than anybody's patience: what is under way waits, or is sent again.
TEST_F(SlowLinkTest, StandsStillForAMoment) {
  MakeLink(kDsl);
  if (IsSkipped()) return;
  StartAcross(/*with_fast_prefill=*/false);
  const auto requests = MakeRequests(/*count=*/12);
  ASSERT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  link_->Cut(absl::Milliseconds(700));
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  EXPECT_TRUE(Eventually([&] { return IsUsable("prefill-0"); }));
  AwaitBlocksFree({"prefill-0", "decode-0"});
}

}  // namespace
}  // namespace baton::test
