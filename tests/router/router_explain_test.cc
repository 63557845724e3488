// What `baton explain` gets from a router, and the trace that a request leaves
// on its way, among fake workers.
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/trace_context.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::FakeWorker;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class ExplainTest : public RouterTest {
 protected:
  ExplainTest() { options_.flow.settle_wait = kReportsCome; }

  grpc::Status TryExplain(const std::string& id,
                          v1::ExplainRequestResponse* response) {
    grpc::ClientContext context;
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + FakeWorker::kPatience));
    v1::ExplainRequestRequest request;
    request.set_request_id(id);
    return stub_->ExplainRequest(&context, request, response);
  }

  v1::ExplainRequestResponse Explain(const std::string& id) {
    v1::ExplainRequestResponse response;
    const grpc::Status status = TryExplain(id, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }

  // Asks until the answer is as wanted: the request may still be on its way.
  template <typename Wanted>
  v1::ExplainRequestResponse Await(const std::string& id, Wanted wanted) {
    v1::ExplainRequestResponse response;
    EXPECT_TRUE(test::AwaitThat([&] {
      response.Clear();
      return TryExplain(id, &response).ok() && wanted(response);
    })) << id
        << " is " << response.ShortDebugString();
    return response;
  }
  void AwaitWaitsFor(const std::string& id, const std::string& what) {
    Await(id, [&](const auto& told) {
      return told.state() == "waiting" && told.waits_for() == what;
    });
  }

  static v1::GenerateRequest Named(const std::string& id) {
    v1::GenerateRequest request = Request();
    request.set_request_id(id);
    return request;
  }

  // Ends a request on its first token.
  static void Serve(FakeWorker* prefill, uint64_t attempt) {
    prefill->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
    prefill->SendOk(attempt);
  }
};

// "p0:chosen", for each candidate.
std::vector<std::string> Standings(const v1::PlacementRecord& placement) {
  std::vector<std::string> standings;
  for (const v1::PlacementCandidate& candidate : placement.candidates()) {
    standings.push_back(candidate.worker() + ":" + candidate.standing());
  }
  return standings;
}

TEST_F(ExplainTest, ARequestThatRunsAndOneThatEnded) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decode = AddDecode("d0");
  StartRouter();
  const double before = absl::ToUnixMillis(absl::Now()) / 1e3;
  v1::GenerateRequest request = Named("mine");
  request.mutable_target()->set_ttft_ms(250);
  request.set_request_class(v1::REQUEST_CLASS_BATCH);
  const auto call = Generate(request);
  const uint64_t attempt = prefill->NextPrefill().attempt();
  prefill->SendToken(attempt, 0, 10);
  ASSERT_TRUE(call->ReadTokens(1));

  v1::ExplainRequestResponse running = Explain("mine");
  EXPECT_EQ(running.request_id(), "mine");
  EXPECT_EQ(running.state(), "running");
  EXPECT_EQ(running.model(), "stories");
  EXPECT_GE(running.received_unix_seconds(), before - 1);
  EXPECT_LE(running.received_unix_seconds(), before + 60);
  EXPECT_EQ(running.usage().prompt_tokens(), 3u);
  EXPECT_EQ(running.usage().output_tokens(), 1u);
  EXPECT_EQ(running.target().ttft_ms(), 250u);
  EXPECT_EQ(running.request_class(), v1::REQUEST_CLASS_BATCH);
  EXPECT_EQ(running.finish_reason(), v1::FINISH_REASON_UNSPECIFIED);
  ASSERT_EQ(running.placements_size(), 1);
  const v1::PlacementRecord& placement = running.placements(0);
  EXPECT_EQ(placement.prefill_worker(), "p0");
  EXPECT_EQ(placement.decode_worker(), "d0");
  EXPECT_EQ(placement.decision(), "prefill-decode");
  EXPECT_EQ(placement.reason(), "least_load");
  EXPECT_EQ(placement.prefill_tokens(), 3u);
  EXPECT_EQ(placement.total_tokens(), 11u);
  EXPECT_EQ(placement.ended(), "");
  EXPECT_THAT(Standings(placement), ElementsAre("p0:chosen", "d0:chosen"));
  EXPECT_EQ(placement.candidates(1).total_blocks(), 1000u);

  decode->SendToken(attempt, 1, kEos, v1::FINISH_REASON_STOP);
  prefill->SendOk(attempt);
  decode->SendOk(attempt);
  ASSERT_TRUE(call->Finish().ok());
  const v1::ExplainRequestResponse done = Explain("mine");
  EXPECT_EQ(done.state(), "done");
  EXPECT_EQ(done.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(done.error(), "");
  EXPECT_EQ(done.usage().output_tokens(), 2u);
  EXPECT_EQ(done.target().ttft_ms(), 250u);
  EXPECT_NEAR(done.received_unix_seconds(), running.received_unix_seconds(),
              0.5);
  // The client was told the same.
  EXPECT_EQ(done.timing().SerializeAsString(),
            call->last().timing().SerializeAsString());
  ASSERT_EQ(done.placements_size(), 1);
  EXPECT_EQ(done.placements(0).SerializeAsString(),
            placement.SerializeAsString());
}

TEST_F(ExplainTest, WhatWasPreemptedGoesOnAndIsNobodysFailure) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decode = AddDecode("d0");
  options_.flow.max_attempts = 1;
  StartRouter();
  AwaitPairs(1);
  const auto call = Generate(Named("mine"));
  std::vector<uint32_t> tokens = {5, 6, 7};
  constexpr int kTimes = 6;
  for (int i = 0; i < kTimes; ++i) {
    const v1::Reserve reserve = decode->NextReserve();
    EXPECT_THAT(reserve.sequence().tokens(), testing::ElementsAreArray(tokens));
    tokens.push_back(10);
    decode->SendToken(reserve.attempt(), i, 10);
    v1::Outcome outcome;
    outcome.set_attempt(reserve.attempt());
    outcome.set_error("others needed its blocks");
    outcome.set_retryable(true);
    outcome.set_failure(v1::FAILURE_KIND_PREEMPTED);
    decode->SendOutcome(outcome);
  }
  const uint64_t last = decode->NextReserve().attempt();
  decode->SendToken(last, kTimes, kEos, v1::FINISH_REASON_STOP);
  ASSERT_TRUE(call->ReadTokens(kTimes + 1));
  prefill->SendOk(last);
  decode->SendOk(last);
  ASSERT_TRUE(call->Finish().ok());
  EXPECT_EQ(call->last().timing().retries(), static_cast<uint32_t>(kTimes));
  const v1::ExplainRequestResponse done = Explain("mine");
  ASSERT_EQ(done.placements_size(), kTimes + 1);
  for (int i = 0; i < kTimes; ++i) {
    EXPECT_EQ(done.placements(i).ended(),
              "preempted: d0: others needed its blocks");
  }
  // It still gets requests.
  EXPECT_EQ(GetModel().num_decode_workers(), 1u);
}

TEST_F(ExplainTest, ARetryAfterAFailureNamesBothAndWhy) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decodes[] = {AddDecode("d0"), AddDecode("d1")};
  StartRouter();
  AwaitPairs(2);
  const auto call = Generate(Named("twice"));
  const uint64_t first = prefill->NextPrefill().attempt();
  prefill->SendToken(first, 0, 10);
  ASSERT_TRUE(call->ReadTokens(1));
  const int failing =
      Explain("twice").placements(0).decode_worker() == "d0" ? 0 : 1;
  EXPECT_EQ(decodes[failing]->NextReserve().attempt(), first);
  decodes[failing]->SendFailure(first, "the transfer is torn", true);
  const uint64_t second = prefill->NextPrefill().attempt();
  // The next one of the answer.
  prefill->SendToken(second, 1, 11);
  prefill->SendOk(second);
  decodes[1 - failing]->SendToken(second, 2, kEos, v1::FINISH_REASON_STOP);
  decodes[1 - failing]->SendOk(second);
  ASSERT_TRUE(call->Finish().ok());

  const v1::ExplainRequestResponse told = Explain("twice");
  EXPECT_EQ(told.timing().retries(), 1u);
  ASSERT_EQ(told.placements_size(), 2);
  const std::string bad = failing == 0 ? "d0" : "d1";
  const std::string good = failing == 0 ? "d1" : "d0";
  EXPECT_EQ(told.placements(0).decode_worker(), bad);
  EXPECT_EQ(told.placements(0).ended(),
            "failed: " + bad + ": the transfer is torn");
  EXPECT_EQ(told.placements(1).decode_worker(), good);
  EXPECT_EQ(told.placements(1).ended(), "");
  // The answer so far is computed again.
  EXPECT_EQ(told.placements(1).prefill_tokens(), 4u);
  EXPECT_THAT(Standings(told.placements(1)),
              testing::IsSupersetOf({bad + ":excluded", good + ":chosen"}));
  EXPECT_GE(told.placements(1).at_seconds(), told.placements(0).at_seconds());
}

TEST_F(ExplainTest, ALostWorkerIsNamedAfterItIsGone) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decode = AddDecode("d0");
  StartRouter();
  const auto call = Generate(Named("lost"));
  const uint64_t attempt = prefill->NextPrefill().attempt();
  EXPECT_EQ(decode->NextReserve().attempt(), attempt);
  decode->Die();
  const v1::ExplainRequestResponse waiting =
      Await("lost", [](const auto& told) { return !told.waits_for().empty(); });
  EXPECT_EQ(waiting.state(), "waiting");
  ASSERT_EQ(waiting.placements_size(), 1);
  EXPECT_EQ(waiting.placements(0).decode_worker(), "d0");
  EXPECT_THAT(waiting.placements(0).ended(),
              AllOf(StartsWith("worker_lost: "), HasSubstr("d0")));
  EXPECT_EQ(waiting.waits_for(), "no_decode_worker");
}

TEST_F(ExplainTest, AnErrorIsHowTheLastAttemptEnded) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  const auto call = Generate(Named("broken"));
  prefill->SendFailure(prefill->NextPrefill().attempt(),
                       "the logits are not finite", false);
  EXPECT_EQ(call->Finish().error_code(), grpc::INTERNAL);
  const v1::ExplainRequestResponse told = Explain("broken");
  EXPECT_EQ(told.state(), "done");
  EXPECT_EQ(told.finish_reason(), v1::FINISH_REASON_ERROR);
  EXPECT_THAT(told.error(),
              AllOf(StartsWith("INTERNAL: "), HasSubstr("not finite")));
  ASSERT_EQ(told.placements_size(), 1);
  EXPECT_EQ(told.placements(0).ended(), told.error());
}

TEST_F(ExplainTest, WhoIsRefusedOftenPauses) {
  FakeWorker* const decode = AddDecode("d0");
  StartRouter();
  const auto call = Generate(Named("unlucky"));
  bool paused = false;
  // A pause may be too short to be seen.
  for (int refusals = 0; !paused && refusals < 50; ++refusals) {
    decode->SendRefusal(decode->NextReserve().attempt(),
                        v1::REFUSAL_REASON_NO_BLOCKS, 0);
    const uint32_t placed = refusals + 2;
    Await("unlucky", [&](const v1::ExplainRequestResponse& told) {
      paused |= told.waits_for() == "a pause: workers refused it often";
      return paused || told.placements_size() + told.placements_left_out() >=
                           static_cast<size_t>(placed);
    });
  }
  EXPECT_TRUE(paused);
  const uint64_t attempt = decode->NextReserve().attempt();
  decode->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
}

TEST_F(ExplainTest, WhoWaitsIsToldWhatFor) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker::Options narrow;
  narrow.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  narrow.hello.set_max_sequences(1);
  Add(std::move(narrow));
  StartRouter();
  AwaitPairs(1);
  const auto first = Generate(Named("first"));
  const uint64_t attempt = prefill->NextPrefill().attempt();
  const auto second = Generate(Named("second"));
  AwaitWaitsFor("second", "decode_full");
  const auto third = Generate(Named("third"));
  AwaitWaitsFor("third", "1 before it; the first waits for decode_full");

  Serve(prefill, attempt);
  ASSERT_TRUE(first->Finish().ok());
  Serve(prefill, prefill->NextPrefill().attempt());
  ASSERT_TRUE(second->Finish().ok());
  Serve(prefill, prefill->NextPrefill().attempt());
  ASSERT_TRUE(third->Finish().ok());
  EXPECT_EQ(Explain("first").placements(0).waited_for(), "");
  EXPECT_EQ(Explain("second").placements(0).waited_for(), "decode_full");
  EXPECT_EQ(Explain("third").placements(0).waited_for(), "decode_full");
}

TEST_F(ExplainTest, TheNewestOfAnIdIsMeant) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  {
    const auto call = Generate(Named("same"));
    prefill->SendFailure(prefill->NextPrefill().attempt(), "no", false);
    EXPECT_EQ(call->Finish().error_code(), grpc::INTERNAL);
  }
  EXPECT_EQ(Explain("same").state(), "done");
  const auto call = Generate(Named("same"));
  const uint64_t attempt = prefill->NextPrefill().attempt();
  EXPECT_EQ(Explain("same").state(), "running");
  Serve(prefill, attempt);
  ASSERT_TRUE(call->Finish().ok());
  EXPECT_EQ(Explain("same").finish_reason(), v1::FINISH_REASON_STOP);
}

TEST_F(ExplainTest, WhatTheRouterDoesNotKnowIsNotFound) {
  AddDecode("d0");
  options_.flow.history.max_requests = 1;
  StartRouter();
  v1::ExplainRequestResponse response;
  const grpc::Status status = TryExplain("nobody", &response);
  EXPECT_EQ(status.error_code(), grpc::NOT_FOUND);
  EXPECT_THAT(status.error_message(), HasSubstr("nobody"));
}

class TraceparentTest : public ExplainTest {
 protected:
  TraceparentTest() : prefill_(AddPrefill("p0")), decode_(AddDecode("d0")) {}

  // What both legs of a request get when the client sends `header`.
  TraceContext SentToTheLegs(const std::string& id, const char* header) {
    grpc::ClientContext context;
    context.set_deadline(
        absl::ToChronoTime(absl::Now() + 2 * FakeWorker::kPatience));
    if (header != nullptr) context.AddMetadata("traceparent", header);
    const auto reader = stub_->Generate(&context, Named(id));
    const v1::Prefill prefill = prefill_->NextPrefill();
    const v1::Reserve reserve = decode_->NextReserve();
    EXPECT_EQ(prefill.sequence().traceparent(),
              reserve.sequence().traceparent());
    Serve(prefill_, prefill.attempt());
    v1::GenerateResponse response;
    while (reader->Read(&response)) {
    }
    EXPECT_TRUE(reader->Finish().ok());
    const auto sent = ParseTraceparent(prefill.sequence().traceparent());
    EXPECT_TRUE(sent.has_value()) << prefill.sequence().traceparent();
    EXPECT_EQ(Explain(id).trace_id(), TraceIdHex(sent.value()));
    return sent.value();
  }

  FakeWorker* const prefill_;
  FakeWorker* const decode_;
};

TEST_F(TraceparentTest, TheClientsTraceGoesOnUnderASpanOfTheRouters) {
  StartRouter();
  const TraceContext sent = SentToTheLegs(
      "r1", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  EXPECT_EQ(TraceIdHex(sent), "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_NE(SpanIdHex(sent.span), "00f067aa0ba902b7");
  EXPECT_TRUE(sent.sampled);
}

TEST_F(TraceparentTest, WithoutAValidHeaderEachRequestIsATraceOfItsOwn) {
  StartRouter();
  std::set<std::string> traces;
  traces.insert(TraceIdHex(SentToTheLegs("r1", nullptr)));
  traces.insert(TraceIdHex(SentToTheLegs("r2", "")));
  traces.insert(TraceIdHex(SentToTheLegs(
      "r3", "00-00000000000000000000000000000000-00f067aa0ba902b7-01")));
  traces.insert(TraceIdHex(SentToTheLegs("r4", "no \"traceparent\"")));
  EXPECT_EQ(traces.size(), 4u);
}

}  // namespace
}  // namespace baton::router
