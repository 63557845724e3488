// Workers that are killed, stopped or restarted under load: no stream hangs or
// says a wrong token, and no block stays behind.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

class FailureTest : public StreamsTest {
 protected:
  // Every stream has the tokens that it would have had, or the first of them
  // and an end that says why.
  void CheckWholeOrUnavailable(const std::vector<v1::GenerateRequest>& requests,
                               const std::vector<Answer>& answers) {
    ASSERT_EQ(answers.size(), requests.size());
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::vector<TokenId> expected = reference_->Tokens(requests[i]);
      if (answers[i].status.ok()) {
        EXPECT_EQ(answers[i].tokens, expected) << i;
        continue;
      }
      EXPECT_TRUE(absl::IsUnavailable(answers[i].status)) << answers[i].status;
      ASSERT_LE(answers[i].tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(answers[i].tokens.begin(), answers[i].tokens.end(),
                             expected.begin()))
          << i;
    }
  }
};

TEST_F(FailureTest, AKilledDecodeWorkersStreamsGoOnElsewhere) {
  const auto requests = MakeRequests();
  CheckKilledDecodeWorker(requests);
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-1"});
}

TEST_F(FailureTest, AKilledPrefillWorkerHurtsNoStream) {
  const auto requests = MakeRequests();
  StartTwoPairs();
  const std::vector<Answer> answers =
      RunAndInterrupt(requests, [&] { cluster_->Kill("prefill-0"); });
  CheckAnswers(requests, answers);
  CheckServes();
  AwaitBlocksFree({"prefill-1", "decode-0", "decode-1"});
}

TEST_F(FailureTest, AStoppedDecodeWorkersStreamsGoOnElsewhere) {
  const auto requests = MakeRequests();
  StartTwoPairs();
  // What it still believes in is over; it comes back empty and useful.
  const auto go_on = [&] {
    cluster_->process("decode-0").Signal(SIGCONT);
    CheckJoined(2, 2);
  };
  const bool hit = InterruptUntilHit(
      requests, [&] { cluster_->process("decode-0").Signal(SIGSTOP); }, go_on);
  EXPECT_TRUE(hit) << "the stop hit no stream";
  ASSERT_NO_FATAL_FAILURE(go_on());
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(FailureTest, AStoppedPrefillWorkerHurtsNoStream) {
  const auto requests = MakeRequests();
  StartTwoPairs();
  // Stopped among the first prompts.
  cluster_->process("prefill-0").Signal(SIGSTOP);
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  cluster_->process("prefill-0").Signal(SIGCONT);
  ASSERT_NO_FATAL_FAILURE(CheckJoined(2, 2));
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(FailureTest, AStoppedRoutersBlocksComeBackAndItsStreamsGoOn) {
  const auto requests = MakeRequests();
  StartTwoPairs();
  const std::vector<Answer> answers = RunAndInterrupt(requests, [&] {
    cluster_->process("router").Signal(SIGSTOP);
    // The workers do not hold KV for a router that they do not hear of.
    AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
    cluster_->process("router").Signal(SIGCONT);
  });
  // Streams whose clients lost patience end with that; no other token is said.
  ASSERT_NO_FATAL_FAILURE(CheckWholeOrUnavailable(requests, answers));
  ASSERT_NO_FATAL_FAILURE(CheckJoined(2, 2));
  CheckServes();
}

TEST_F(FailureTest, ARouterDrainsForAsLongAsItIsTold) {
  const auto requests = MakeRequests();
  int cut_off = 0;
  // All may have been over by the signal.
  for (int round = 0; round < 5 && cut_off == 0; ++round) {
    cluster_.reset();
    StartCluster({.router = {"--drain-seconds", "0"}});
    const std::vector<Answer> answers = RunAndInterrupt(
        requests, [&] { cluster_->process("router").Signal(SIGTERM); });
    ASSERT_NO_FATAL_FAILURE(CheckWholeOrUnavailable(requests, answers));
    for (const Answer& answer : answers) cut_off += !answer.status.ok();
  }
  EXPECT_GT(cut_off, 0);
  cluster_.reset();
  StartCluster({.router = {"--drain-seconds", "60"}});
  CheckAnswers(requests, RunAndInterrupt(requests, [&] {
                 cluster_->process("router").Signal(SIGTERM);
               }));
}

// One worker after another, while requests come without a pause.
TEST_F(FailureTest, ARollingRestartLosesNoRequest) {
  const auto requests = MakeRequests(/*count=*/8);
  // Streams that still run after a moment are given back.
  StartCluster({.prefill = {{"--drain-seconds", "0.3"}, {}},
                .decode = {{"--drain-seconds", "0.3"}, {}}});
  std::atomic<bool> stop{false};
  std::atomic<int> done{0};
  std::vector<std::thread> clients;
  for (const v1::GenerateRequest& request : requests) {
    clients.emplace_back([&, expected = reference_->Tokens(request)] {
      while (!stop) {
        const Answer answer = Generate(*stub_, request, 2 * kPatience);
        ASSERT_TRUE(answer.status.ok()) << answer.status;
        ASSERT_EQ(answer.tokens, expected);
        ++done;
      }
    });
  }
  const auto await_more = [&](int count) {
    const int from = done;
    EXPECT_TRUE(Eventually([&] { return done >= from + count; }));
  };
  await_more(4);
  for (const char* name : {"decode-0", "decode-1", "prefill-0", "prefill-1"}) {
    SCOPED_TRACE(name);
    RestartWorker(name[0] == 'd' ? "baton-decode" : "baton-prefill", name);
    const absl::Status joined = cluster_->AwaitJoined(2, 2);
    EXPECT_TRUE(joined.ok()) << joined;
    await_more(8);
  }
  stop = true;
  for (std::thread& client : clients) client.join();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(FailureTest, WithoutItsOnlyDecodeWorkerTheClusterSaysSo) {
  StartCluster({});
  Answer answer;
  for (int round = 0; round < 5; ++round) {
    bool killed = false;
    answer = Generate(*stub_, GreedyRequest({1, 2, 3}, 500), kPatience,
                      [&](const v1::GenerateResponse&, size_t tokens) {
                        if (tokens >= 3 && !std::exchange(killed, true)) {
                          cluster_->Kill("decode-0");
                        }
                        return true;
                      });
    if (!answer.status.ok()) break;
    // All of it was computed before the kill: again.
    ASSERT_NO_FATAL_FAILURE(LaunchAgain("baton-decode", "decode-0"));
    ASSERT_NO_FATAL_FAILURE(CheckJoined(1, 1));
  }
  EXPECT_TRUE(absl::IsUnavailable(answer.status)) << answer.status;
  EXPECT_NE(answer.status.message(), "");
  const Answer next = Generate(*stub_, GreedyRequest({1}, 5), kPatience);
  EXPECT_TRUE(absl::IsUnavailable(next.status)) << next.status;
}

TEST_F(FailureTest, ARestartedWorkerIsANewPeer) {
  StartCluster({});
  CheckServes();
  cluster_->Kill("decode-0");
  ASSERT_NO_FATAL_FAILURE(CheckJoined(0, 0));
  ASSERT_NO_FATAL_FAILURE(LaunchAgain("baton-decode", "decode-0"));
  ASSERT_NO_FATAL_FAILURE(CheckJoined(1, 1));
  CheckServes();
}

TEST_F(FailureTest, SigtermEndsEveryProgramWithZero) {
  StartCluster({});
  CheckServes();
  for (const char* name : {"router", "prefill-0", "decode-0"}) {
    cluster_->process(name).Signal(SIGTERM);
    const auto exit = cluster_->process(name).WaitExit(kPatience);
    ASSERT_TRUE(exit.ok()) << exit.status();
    EXPECT_EQ(exit->Describe(), "exit status 0") << name;
  }
}

}  // namespace
}  // namespace baton::test
