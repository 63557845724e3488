// Dual workers: `baton-worker` computes prompts or decodes, and changes between
// the two under load, without anybody noticing.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"
#include "tests/worker/in_process_worker.h"

namespace baton::test {
namespace {

const Flags kPrefillFirst = {"--role", "prefill"};
const Flags kDecodeFirst = {"--role", "decode"};

class DualWorkerTest : public StreamsTest {
 protected:
  // The sum over all series of that name whose labels contain `labels`.
  double Sum(const std::string& worker, const std::string& name,
             const std::string& labels = "") {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    return text.ok() ? MetricSum(*text, name, labels) : 0;
  }
  bool IsPrefill(const std::string& worker) {
    return Sum(worker, "baton_worker_role", "role=\"prefill\"") == 1;
  }

  // Asks as another router would, until it is so.
  void SetRole(const std::string& worker, v1::WorkerRole role) {
    auto& stream = streams_[worker];
    if (stream == nullptr) {
      stream = std::make_unique<worker::RouterStream>(
          cluster_->Address(worker, "grpc"));
    }
    v1::RouterMessage message;
    message.mutable_set_role()->set_role(role);
    message.mutable_set_role()->set_reason("a test asks");
    EXPECT_TRUE(Eventually([&] {
      stream->Send(message);
      return IsPrefill(worker) == (role == v1::WORKER_ROLE_PREFILL);
    })) << worker;
  }

  std::map<std::string, std::unique_ptr<worker::RouterStream>> streams_;
};

TEST_F(DualWorkerTest, StreamsGoOnWhileWorkersChangeTheirRoles) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {},
                    .decode = {},
                    .dual = {kPrefillFirst, kDecodeFirst, kDecodeFirst},
                    .router = {"--roles", "fixed"}}));
  const auto requests = MakeRequests();
  const auto answers = RunAndInterrupt(requests, [&] {
    SetRole("dual-1", v1::WORKER_ROLE_PREFILL);
    SetRole("dual-0", v1::WORKER_ROLE_DECODE);
    SetRole("dual-2", v1::WORKER_ROLE_PREFILL);
  });
  // Nobody was placed again for it.
  EXPECT_EQ(CheckAnswers(requests, answers), 0);
  double sent = 0;
  for (const char* worker : {"dual-0", "dual-1", "dual-2"}) {
    EXPECT_EQ(Sum(worker, "baton_role_switch_total"), 1) << worker;
    sent += Sum(worker, "baton_kv_transfer_seconds_count", "role=\"prefill\"");
  }
  EXPECT_GT(sent, 0);
  // In their new roles, they serve each other.
  const auto computed = [&] {
    return Sum("dual-1", "baton_prompt_tokens_total", "role=\"prefill\"") +
           Sum("dual-2", "baton_prompt_tokens_total", "role=\"prefill\"");
  };
  const double before = computed();
  const auto more = MakeRequests(6);
  EXPECT_EQ(CheckAnswers(more, RunAndInterrupt(more, [] {})), 0);
  EXPECT_GT(computed(), before);
  for (const char* worker : {"dual-0", "dual-1", "dual-2"}) {
    EXPECT_TRUE(Eventually([&] {
      return Sum(worker, "baton_kv_blocks_in_use") == 0 &&
             Sum(worker, "baton_role_switch_seconds_count") == 1;
    })) << worker;
  }
}

TEST_F(DualWorkerTest, TheRouterAsksForADecodeWorkerWhereThereIsNone) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  ASSERT_TRUE(cluster_
                  ->Launch("baton-worker", "dual-0",
                           {"--role", "prefill", "--threads", "1"})
                  .ok());
  ASSERT_TRUE(cluster_->process("dual-0").WaitReady(kPatience).ok());
  ASSERT_TRUE(cluster_->StartRouter({"dual-0"}, {"dual-0"}, {}).ok());
  EXPECT_TRUE(Eventually([&] { return !IsPrefill("dual-0"); }));
  const absl::Status joined = cluster_->AwaitJoined(0, 1);
  ASSERT_TRUE(joined.ok()) << joined;
  EXPECT_EQ(Sum("router", "baton_router_role_requests_total", "to=\"decode\""),
            1);
  stub_ = cluster_->MakeStub();
  CheckServes();
}

// A side that has nothing left says so all the same, and refuses what comes.
TEST_F(DualWorkerTest, DrainsBothSidesThoughOneIsEmpty) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  ASSERT_TRUE(
      cluster_->Launch("baton-worker", "dual-0", {"--drain-seconds", "60"})
          .ok());
  cli::ChildProcess& process = cluster_->process("dual-0");
  ASSERT_TRUE(process.WaitReady(kPatience).ok());
  worker::RouterStream prefill(cluster_->Address("dual-0", "grpc"));
  worker::RouterStream decode(cluster_->Address("dual-0", "grpc_decode"));
  v1::SequenceSpec spec;
  for (uint32_t token : {1, 2, 3}) spec.add_tokens(token);
  spec.set_prompt_length(3);
  spec.set_max_output_tokens(4);
  spec.mutable_sampling()->set_top_p(1);
  spec.mutable_sampling()->set_repetition_penalty(1);
  // Its KV never comes: the decode side has something left.
  v1::RouterMessage message;
  message.mutable_reserve()->set_attempt(1);
  *message.mutable_reserve()->mutable_sequence() = spec;
  decode.Send(message);
  decode.AwaitGrant(1);
  process.Signal(SIGTERM);
  prefill.Await([](const v1::WorkerMessage& answer) {
    return answer.has_load() && answer.load().draining();
  });
  message.mutable_prefill()->set_attempt(2);
  *message.mutable_prefill()->mutable_sequence() = spec;
  prefill.Send(message);
  EXPECT_EQ(prefill.AwaitRefusal(2).reason(), v1::REFUSAL_REASON_DRAINING);
  message.mutable_cancel()->set_attempt(1);
  decode.Send(message);
  const auto exit = process.WaitExit(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status();
  EXPECT_EQ(exit->Describe(), "exit status 0");
}

TEST_F(DualWorkerTest, APortInUseEndsItThoughTheOtherSideServes) {
  cluster_ = std::make_unique<Cluster>(model_dir_);
  ASSERT_TRUE(cluster_->Launch("baton-worker", "dual-0", {}).ok());
  ASSERT_TRUE(cluster_->process("dual-0").WaitReady(kPatience).ok());
  const std::string taken = cluster_->Address("dual-0", "grpc_decode");
  const RunResult run = RunProgram(
      "baton-worker", {"--model", model_dir_, "--listen-decode", taken});
  EXPECT_EQ(run.exit.Describe(), "exit status 1");
  EXPECT_TRUE(absl::StrContains(run.err, taken)) << run.err;
}

TEST_F(DualWorkerTest, OneThatDiesIsAPauseForBothOfItsSides) {
  ASSERT_NO_FATAL_FAILURE(
      StartCluster({.prefill = {},
                    .decode = {},
                    .dual = {kPrefillFirst, kDecodeFirst, kDecodeFirst},
                    .router = {"--roles", "fixed"}}));
  const auto requests = MakeRequests();
  EXPECT_TRUE(InterruptUntilHit(
      requests, [&] { cluster_->Kill("dual-1"); },
      [&] {
        auto again = cluster_->Launch(
            "baton-worker", "dual-1",
            {"--role", "decode", "--listen",
             cluster_->Address("dual-1", "grpc"), "--listen-decode",
             cluster_->Address("dual-1", "grpc_decode")});
        ASSERT_TRUE(again.ok()) << again.status();
        ASSERT_TRUE((*again)->WaitReady(kPatience).ok());
        // Else it has nothing to lose.
        CheckJoined(1, 2);
      }));
  CheckServes();
}

}  // namespace
}  // namespace baton::test
