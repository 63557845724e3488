// Workers that say nothing while their connection stands.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::AwaitThat;
using test::FakeWorker;

class SilenceTest : public RouterTest {
 protected:
  SilenceTest() {
    ServeMetrics();
    // Soon, for those that never answer.
    options_.cluster.detector.interval = absl::Milliseconds(50);
    options_.cluster.detector.patience = absl::Milliseconds(100);
    options_.cluster.detector.max_patience = absl::Milliseconds(400);
  }

  // One that says that it answers heartbeats.
  FakeWorker* AddAnswering(v1::WorkerRole role, const std::string& name,
                           bool really) {
    FakeWorker::Options options;
    options.hello = FakeWorker::Hello(role, name);
    options.hello.set_answers_heartbeats(true);
    options.answer_heartbeats = really;
    return Add(options);
  }
  double FalseLosses(const std::string& role) {
    return Metric(absl::StrCat(
        "baton_worker_false_losses_total{model_name=\"stories\",role=\"router\""
        ",worker=\"router\",peer_role=\"",
        role, "\"}"));
  }
};

TEST_F(SilenceTest, ItsRequestsGoOnElsewhere) {
  FakeWorker* const silent =
      AddAnswering(v1::WORKER_ROLE_DECODE, "d0", /*really=*/false);
  FakeWorker* const other = AddDecode("d1");
  StartRouter();
  AwaitServing(true);
  // It is asked, and lost, and back, as often as we wait for it.
  const auto call = Generate(Request());
  ASSERT_TRUE(
      AwaitThat([&] { return silent->HasReserve() || other->HasReserve(); }));
  ASSERT_TRUE(AwaitThat([&] { return other->HasReserve(); }));
  EXPECT_TRUE(AwaitThat([&] { return FalseLosses("decode") >= 3; }));
  EXPECT_EQ(FalseLosses("prefill"), 0);
  EXPECT_TRUE(silent->NextHeartbeat().answer());
  // The one that does not say that it answers is not asked to.
  EXPECT_FALSE(other->NextHeartbeat().answer());
}

TEST_F(SilenceTest, AnAnswerIsEnough) {
  options_.cluster.detector.patience = absl::Seconds(20);
  FakeWorker* const decode =
      AddAnswering(v1::WORKER_ROLE_DECODE, "d0", /*really=*/true);
  StartRouter();
  AwaitServing(true);
  while (!decode->NextHeartbeat().answer()) {
  }
  EXPECT_TRUE(decode->NextHeartbeat().answer());
  EXPECT_EQ(FalseLosses("decode"), 0);
}

// Its process runs, its loop hangs: it answers heartbeats, and that is all.
TEST_F(SilenceTest, RequestsOfALoopThatHangsGoOnElsewhere) {
  options_.cluster.detector.patience = absl::Seconds(20);
  options_.cluster.silence_timeout = absl::Seconds(1);
  FakeWorker* const hung =
      AddAnswering(v1::WORKER_ROLE_DECODE, "d0", /*really=*/true);
  StartRouter();
  AwaitServing(true);
  const auto call = Generate(Request());
  const uint64_t first = hung->NextReserve().attempt();
  EXPECT_NE(hung->NextReserve().attempt(), first);
  // That it came back says nothing of how soon it answers heartbeats.
  EXPECT_EQ(FalseLosses("decode"), 0);
}

}  // namespace
}  // namespace baton::router
