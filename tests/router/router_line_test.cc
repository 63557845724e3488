// Whose turn it is when requests have to wait, and who is turned away.
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/numbers.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::AwaitThat;
using test::FakeWorker;
using testing::HasSubstr;

constexpr uint32_t kEnd = 2044;
const std::string kLabels =
    "{model_name=\"stories\",role=\"router\",worker=\"router\"";
const std::string kWaiting =
    "baton_requests_waiting_by_lane" + kLabels + ",lane=\"";

class RouterLineTest : public RouterTest {
 protected:
  // A router with one worker that has so many places, of which one is taken,
  // and says so of itself.
  void StartWith(uint32_t places, const v1::LoadReport& load) {
    FakeWorker::Options options;
    options.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
    options.hello.set_max_sequences(places);
    decode_ = Add(options);
    ServeMetrics();
    StartRouter();
    running_ = Generate();
    attempt_ = decode_->NextReserve().attempt();
    // The token comes behind the report.
    decode_->SendLoad(load);
    decode_->SendToken(attempt_, index_++, 5);
    EXPECT_TRUE(running_->ReadTokens(1));
  }
  static v1::LoadReport OneRuns() {
    v1::LoadReport load;
    load.set_running(1);
    load.set_free_blocks(1000);
    return load;
  }
  // It has no other place. A prompt takes it ten seconds, it says.
  void StartFull() {
    v1::LoadReport load = OneRuns();
    load.mutable_step_cost()->set_fixed(10);
    StartWith(1, load);
  }

  // Its prompt begins with `mark`, by which the worker's side knows it.
  static v1::GenerateRequest Marked(uint32_t mark) {
    v1::GenerateRequest request = Request();
    request.mutable_token_ids()->set_ids(0, mark);
    return request;
  }
  static v1::GenerateRequest BatchRequest(uint32_t mark) {
    v1::GenerateRequest request = Marked(mark);
    request.set_request_class(v1::REQUEST_CLASS_BATCH);
    return request;
  }

  // Asks, and waits until it stands in line as the `number`th.
  std::unique_ptr<Call> Wait(const v1::GenerateRequest& request, int number) {
    auto call = Generate(request);
    EXPECT_TRUE(AwaitThat(
        [&] { return Metric("baton_num_requests_waiting") >= number; }));
    return call;
  }

  // The one that runs ends. Returns the mark of the next.
  uint32_t Next() {
    End();
    const v1::Reserve reserve = decode_->NextReserve();
    attempt_ = reserve.attempt();
    return reserve.sequence().tokens(0);
  }
  // The last one ends.
  void End() {
    decode_->SendToken(attempt_, std::exchange(index_, 0), kEnd,
                       v1::FINISH_REASON_STOP);
    decode_->SendOk(attempt_);
  }

  void ExpectTurnedAway(Call* call, const std::string& why) {
    const grpc::Status status = call->Finish();
    EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
    EXPECT_THAT(status.error_message(), HasSubstr(why));
    int64_t retry_after_ms = 0;
    EXPECT_TRUE(absl::SimpleAtoi(call->TrailingMetadata("retry-after-ms"),
                                 &retry_after_ms));
    EXPECT_GT(retry_after_ms, 0);
  }

  FakeWorker* decode_ = nullptr;
  std::unique_ptr<Call> running_;
  uint64_t attempt_ = 0;
  uint32_t index_ = 0;  // of its next token
};

TEST_F(RouterLineTest, InteractiveBeforeBatchAndUrgentBeforeOthers) {
  StartFull();
  v1::GenerateRequest urgent = Marked(13);
  urgent.set_priority(1);
  const auto batch = Wait(BatchRequest(11), 1);
  const auto plain = Wait(Marked(12), 2);
  const auto first = Wait(urgent, 3);
  EXPECT_EQ(Metric(kWaiting + "batch\"}"), 1);
  EXPECT_EQ(Metric(kWaiting + "on_time\"}"), 2);
  EXPECT_EQ(Next(), 13u);
  EXPECT_TRUE(running_->Finish().ok());
  EXPECT_EQ(Next(), 12u);
  EXPECT_EQ(Next(), 11u);
  End();
  for (Call* call : {first.get(), plain.get(), batch.get()}) {
    EXPECT_TRUE(call->Finish().ok());
  }
}

TEST_F(RouterLineTest, WhatCannotBeInTimeIsTurnedAway) {
  options_.flow.line.max_late = 0;
  StartFull();
  const auto waiting = Wait(Marked(11), 1);
  v1::GenerateRequest late = Marked(12);
  late.mutable_target()->set_ttft_ms(1000);
  ExpectTurnedAway(Generate(late).get(), "could not come in time");
  EXPECT_EQ(Metric("baton_admission_total" + kLabels +
                   ",outcome=\"rejected\",reason=\"late\""),
            1);
  // Nobody waits for a batch request.
  late.set_request_class(v1::REQUEST_CLASS_BATCH);
  const auto batch = Wait(late, 2);
  EXPECT_EQ(Next(), 11u);
  EXPECT_EQ(Next(), 12u);
  End();
  EXPECT_TRUE(waiting->Finish().ok());
  EXPECT_TRUE(batch->Finish().ok());
}

TEST_F(RouterLineTest, AClassHasTargetsOfItsOwn) {
  options_.flow.line.max_late = 0;
  options_.door.targets.interactive.ttft = absl::Seconds(1);
  // The first one comes to an idle cluster, which takes it.
  StartFull();
  const auto batch = Wait(BatchRequest(11), 1);
  ExpectTurnedAway(Generate(Marked(12)).get(), "could not come in time");
  // Its own target counts before that of its class.
  v1::GenerateRequest own = Marked(13);
  own.mutable_target()->set_ttft_ms(3600 * 1000);
  const auto waiting = Wait(own, 2);
  EXPECT_EQ(Next(), 13u);
  EXPECT_EQ(Next(), 11u);
  End();
  EXPECT_TRUE(waiting->Finish().ok());
  EXPECT_TRUE(batch->Finish().ok());
}

// The worker has room, and prompts before this one that take it ten seconds.
TEST_F(RouterLineTest, WhoWouldBeLateOnADecodeWorkerStandsBack) {
  v1::LoadReport load = OneRuns();
  load.set_queued_tokens(1000);
  load.set_queued_prompts(1);
  load.mutable_step_cost()->set_per_token(0.01);
  StartWith(64, load);

  v1::GenerateRequest late = Marked(11);
  late.mutable_target()->set_ttft_ms(5000);
  const auto waiting = Wait(late, 1);
  EXPECT_EQ(Metric(kWaiting + "late\"}"), 1);
  // Who would be in time does not wait behind it.
  v1::GenerateRequest patient = Marked(12);
  patient.mutable_target()->set_ttft_ms(3600 * 1000);
  const auto passing = Generate(patient);
  const v1::Reserve passed = decode_->NextReserve();
  EXPECT_EQ(passed.sequence().tokens(0), 12u);
  decode_->SendToken(passed.attempt(), 0, kEnd, v1::FINISH_REASON_STOP);
  decode_->SendOk(passed.attempt());
  EXPECT_TRUE(passing->Finish().ok());
  EXPECT_EQ(Metric("baton_num_requests_waiting"), 1);
  // Its turn comes when nothing is before it.
  load.clear_queued_tokens();
  load.clear_queued_prompts();
  decode_->SendLoad(load);
  const v1::Reserve turn = decode_->NextReserve();
  EXPECT_EQ(turn.sequence().tokens(0), 11u);
  decode_->SendToken(turn.attempt(), 0, kEnd, v1::FINISH_REASON_STOP);
  decode_->SendOk(turn.attempt());
  EXPECT_TRUE(waiting->Finish().ok());
  End();
  EXPECT_TRUE(running_->Finish().ok());
}

TEST_F(RouterLineTest, AFullLineMakesRoomForInteractiveRequests) {
  options_.flow.line.max_requests = 1;
  StartFull();
  const auto batch = Wait(BatchRequest(11), 1);
  const auto interactive = Generate(Marked(12));
  ExpectTurnedAway(batch.get(), "took its place");
  EXPECT_EQ(Metric("baton_requests_evicted_total"), 1);
  ExpectTurnedAway(Generate(BatchRequest(13)).get(), "1 requests are waiting");
  EXPECT_EQ(Next(), 12u);
  End();
  EXPECT_TRUE(interactive->Finish().ok());
}

}  // namespace
}  // namespace baton::router
