// What the router does when workers refuse, fail, die or do not fit, when
// clients are slow, and when there is too much to do.
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"
#include "tests/support/own_loopback.h"
#include "tests/support/scratch_dir.h"

namespace baton::router {
namespace {

using test::AwaitThat;
using test::FakeWorker;
using testing::ElementsAre;
using testing::HasSubstr;

class TwoPairsTest : public TwoPairsFixture {
 protected:
  // The workers that an attempt went to.
  struct Placed {
    FakeWorker* prefill = nullptr;
    FakeWorker* decode = nullptr;
    FakeWorker* other_prefill = nullptr;
    FakeWorker* other_decode = nullptr;
    uint64_t attempt = 0;
    v1::SequenceSpec sequence;
  };
  Placed FindPlaced() {
    Placed placed;
    // All are idle: the first one of each kind is taken.
    placed.prefill = p_[0];
    placed.other_prefill = p_[1];
    placed.decode = d_[0];
    placed.other_decode = d_[1];
    const v1::Prefill prefill = placed.prefill->NextPrefill();
    placed.attempt = prefill.attempt();
    placed.sequence = prefill.sequence();
    EXPECT_EQ(placed.decode->NextReserve().attempt(), placed.attempt);
    return placed;
  }
};

TEST_F(TwoPairsTest, BusyThenGrantedElsewhere) {
  StartAndPairAll();
  const auto call = Generate();
  const Placed placed = FindPlaced();
  // A hint of an hour is no reason to wait: there is another worker.
  placed.decode->SendRefusal(placed.attempt, v1::REFUSAL_REASON_NO_SEQUENCES,
                             3600 * 1000);
  EXPECT_EQ(placed.prefill->NextCancel().attempt(), placed.attempt);
  const v1::Reserve second = placed.other_decode->NextReserve();
  EXPECT_GT(second.attempt(), placed.attempt);
  placed.other_decode->SendGrant(second.attempt());
  placed.other_decode->SendToken(second.attempt(), 0, kEos,
                                 v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_EQ(call->last().timing().decode_worker(), "d1");
  EXPECT_EQ(call->last().timing().retries(), 1u);
}

TEST_F(TwoPairsTest, DrainingWorkerGetsNoMoreRequests) {
  StartAndPairAll();
  const auto call = Generate();
  const Placed placed = FindPlaced();
  placed.decode->SendRefusal(placed.attempt, v1::REFUSAL_REASON_DRAINING, 0);
  const uint64_t second = placed.other_decode->NextReserve().attempt();
  placed.other_decode->SendToken(second, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
  for (int i = 0; i < 4; ++i) {
    const auto next = Generate();
    const uint64_t attempt = placed.other_decode->NextReserve().attempt();
    placed.other_decode->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
    EXPECT_TRUE(next->Finish().ok());
  }
  EXPECT_FALSE(placed.decode->HasReserve());
  EXPECT_EQ(GetModel().num_decode_workers(), 1u);
}

TEST_F(TwoPairsTest, PrefillWorkerLostIsReplaced) {
  StartAndPairAll();
  const auto call = Generate();
  const Placed placed = FindPlaced();
  placed.decode->SendGrant(placed.attempt);
  placed.prefill->NextGrant();
  placed.prefill->Die();
  // The reservation is given back at once.
  EXPECT_EQ(placed.decode->NextCancel().attempt(), placed.attempt);
  const v1::Prefill second = placed.other_prefill->NextPrefill();
  EXPECT_THAT(second.sequence().tokens(), ElementsAre(5, 6, 7));
  placed.other_prefill->SendToken(second.attempt(), 0, kEos,
                                  v1::FINISH_REASON_STOP);
  placed.other_prefill->SendOk(second.attempt());
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(kEos));
  EXPECT_EQ(call->last().timing().prefill_worker(), "p1");
}

TEST_F(TwoPairsTest, DecodeWorkerLostMidStreamGoesOnWithTheNextToken) {
  StartAndPairAll();
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_temperature(1);
  const auto call = Generate(request);
  const Placed placed = FindPlaced();
  placed.decode->SendGrant(placed.attempt);
  placed.prefill->SendToken(placed.attempt, 0, 10);
  placed.prefill->SendOk(placed.attempt);
  placed.decode->SendToken(placed.attempt, 1, 11);
  placed.decode->SendToken(placed.attempt, 2, 12);
  ASSERT_TRUE(call->ReadTokens(3));
  placed.decode->Die();

  const v1::Reserve second = placed.other_decode->NextReserve();
  const v1::SequenceSpec& sequence = second.sequence();
  EXPECT_THAT(sequence.tokens(), ElementsAre(5, 6, 7, 10, 11, 12));
  EXPECT_EQ(sequence.prompt_length(), 3u);
  EXPECT_EQ(sequence.max_output_tokens(), 8u);
  // The drawn seed stays, so that the stream goes on as it would have.
  EXPECT_EQ(sequence.sampling().seed(), placed.sequence.sampling().seed());
  placed.other_decode->SendToken(second.attempt(), 3, 13);
  placed.other_decode->SendToken(second.attempt(), 4, kEos,
                                 v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
  EXPECT_THAT(call->tokens(), ElementsAre(10, 11, 12, 13, kEos));
  EXPECT_EQ(call->last().usage().prompt_tokens(), 3u);
  EXPECT_EQ(call->last().usage().output_tokens(), 5u);
  EXPECT_EQ(call->last().timing().retries(), 1u);
}

// Its port is free when it starts again.
FakeWorker::Options DecodeAtOwnAddress() {
  FakeWorker::Options options;
  options.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  options.listen = test::OwnLoopback() + ":0";
  return options;
}

TEST_F(RouterTest, RestartedWorkerIsANewPeer) {
  FakeWorker* const prefill = AddPrefill("p0");
  FakeWorker* const decode = Add(DecodeAtOwnAddress());
  StartRouter();
  AwaitServing(true);
  const uint64_t old_incarnation = prefill->NextPair().decode_incarnation();
  FakeWorker::Options again;
  again.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  again.listen = decode->address();
  decode->Die();
  AwaitServing(false);
  FakeWorker restarted(again);
  EXPECT_EQ(prefill->NextPair().decode_incarnation(),
            again.hello.incarnation());
  EXPECT_NE(again.hello.incarnation(), old_incarnation);
  AwaitServing(true);
  router_.reset();  // before the worker that it is connected to
}

TEST_F(RouterTest, SlowClientStallsOnlyItself) {
  // A context long enough to fill every buffer on the way.
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/long_stories";
  std::filesystem::create_directory(dir);
  for (const char* file :
       {"config.json", "generation_config.json", "tokenizer.json"}) {
    std::ifstream in(options_.model_dir + "/" + file);
    const std::string text((std::istreambuf_iterator<char>(in)), {});
    std::ofstream(dir + "/" + file) << absl::StrReplaceAll(
        text, {{"\"max_position_embeddings\": 512",
                "\"max_position_embeddings\": 4000000"}});
  }
  options_.model_dir = dir;
  options_.call.max_pending_responses = 4;
  options_.call.linger = absl::Milliseconds(50);
  FakeWorker::Options worker;
  worker.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  worker.hello.set_total_blocks(1 << 20);
  worker.hello.set_max_context(4000000);
  FakeWorker* const decode = Add(worker);
  StartRouter();

  grpc::ChannelArguments small_window;
  small_window.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  small_window.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto channel = grpc::CreateCustomChannel(
      router_->address(), grpc::InsecureChannelCredentials(), small_window);
  const auto stub = v1::Inference::NewStub(channel);
  v1::GenerateRequest request = Request();
  request.clear_max_tokens();
  Call slow(stub.get(), request);
  const uint64_t slow_attempt = decode->NextReserve().attempt();
  const auto quick = Generate();
  const uint64_t quick_attempt = decode->NextReserve().attempt();

  // The slow client reads nothing. Its request is cancelled, and nobody else's.
  uint32_t index = 0;
  while (!decode->HasCancel()) {
    ASSERT_LT(index, 3000000u) << "the bound was never reached";
    decode->SendToken(slow_attempt, index++, 500);
  }
  const v1::Cancel cancel = decode->NextCancel();
  EXPECT_EQ(cancel.attempt(), slow_attempt);
  EXPECT_THAT(cancel.reason(), HasSubstr("too slowly"));
  decode->SendToken(quick_attempt, 0, kEos, v1::FINISH_REASON_STOP);
  decode->SendOk(quick_attempt);
  EXPECT_TRUE(quick->Finish().ok());
  EXPECT_FALSE(slow.Finish().ok());
}

TEST_F(RouterTest, MisfitIsNeverPlaced) {
  AddPrefill("p0");
  FakeWorker* const fits = AddDecode("d0");
  FakeWorker::Options other;
  other.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d-other");
  other.hello.mutable_fingerprint()->set_block_size(24);
  other.hello.set_total_blocks(100000);
  FakeWorker* const misfit = Add(other);
  FakeWorker::Options foreign;
  foreign.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d-foreign");
  foreign.hello.mutable_fingerprint()->set_vocab_size(32000);
  FakeWorker* const stranger = Add(foreign);
  StartRouter();
  AwaitWhyNot("d-other", "block_size");
  AwaitWhyNot("d-foreign", "vocab_size");
  AwaitPairs(1);
  for (int i = 0; i < 6; ++i) {
    const auto call = Generate();
    const uint64_t attempt = fits->NextReserve().attempt();
    fits->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
    EXPECT_TRUE(call->Finish().ok());
  }
  EXPECT_FALSE(misfit->HasReserve());
  EXPECT_FALSE(stranger->HasReserve());
  EXPECT_EQ(GetModel().num_decode_workers(), 1u);
}

TEST_F(RouterTest, OnlyMisfitsIsUnavailableAndSaysWhy) {
  AddPrefill("p0");
  FakeWorker::Options other;
  other.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d-other");
  other.hello.mutable_fingerprint()->set_block_size(24);
  FakeWorker* const misfit = Add(other);
  options_.flow.worker_wait = absl::Milliseconds(500);
  StartRouter();
  AwaitWhyNot("d-other", "block_size");
  const grpc::Status status = Generate()->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no decode worker can serve"));
  EXPECT_THAT(status.error_message(), HasSubstr("block_size (24"));
  EXPECT_FALSE(misfit->HasReserve());
}

TEST_F(RouterTest, RefusedPairIsNotUsed) {
  FakeWorker::Options options;
  options.hello = FakeWorker::Hello(v1::WORKER_ROLE_PREFILL, "p0");
  options.pair_refusal = "cannot reach it";
  Add(options);
  AddDecode("d0");
  options_.flow.worker_wait = absl::Milliseconds(500);
  StartRouter();
  ASSERT_TRUE(AwaitThat([&] {
    const v1::GetClusterResponse cluster = GetCluster();
    return cluster.links_size() == 1 &&
           absl::StrContains(cluster.links(0).why_not(), "cannot reach it");
  }));
  const grpc::Status status = Generate()->Finish();
  EXPECT_EQ(status.error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("no prefill worker can serve"));
}

TEST_F(RouterTest, RequestWaitsForAWorkerToJoin) {
  FakeWorker* const gone = Add(DecodeAtOwnAddress());
  FakeWorker::Options again;
  again.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  again.listen = gone->address();
  gone->Die();
  StartRouter();
  const auto call = Generate();
  FakeWorker joined(again);
  const uint64_t attempt = joined.NextReserve().attempt();
  joined.SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(call->Finish().ok());
  router_.reset();
}

TEST_F(RouterTest, FullQueueRejectsWithAHint) {
  AddDecode("d0")->Die();
  options_.flow.line.max_requests = 2;
  ServeMetrics();
  StartRouter();
  const auto first = Generate();
  const auto second = Generate();
  ASSERT_TRUE(
      AwaitThat([&] { return Metric("baton_num_requests_waiting") >= 2; }));
  const auto third = Generate();
  const grpc::Status status = third->Finish();
  EXPECT_EQ(status.error_code(), grpc::RESOURCE_EXHAUSTED);
  EXPECT_THAT(status.error_message(), HasSubstr("2 requests are waiting"));
  int64_t retry_after_ms = 0;
  EXPECT_TRUE(absl::SimpleAtoi(third->TrailingMetadata("retry-after-ms"),
                               &retry_after_ms));
  EXPECT_GT(retry_after_ms, 0);
}

TEST_F(RouterTest, FullWorkersMakeRequestsWait) {
  FakeWorker::Options options;
  options.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  options.hello.set_max_sequences(1);
  FakeWorker* const decode = Add(options);
  ServeMetrics();
  StartRouter();
  const auto first = Generate();
  const uint64_t attempt = decode->NextReserve().attempt();
  const auto second = Generate();
  ASSERT_TRUE(
      AwaitThat([&] { return Metric("baton_num_requests_waiting") >= 1; }));
  EXPECT_FALSE(decode->HasReserve());
  // Its place is free as soon as the worker says so.
  decode->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  decode->SendOk(attempt);
  EXPECT_TRUE(first->Finish().ok());
  const uint64_t next = decode->NextReserve().attempt();
  decode->SendToken(next, 0, kEos, v1::FINISH_REASON_STOP);
  EXPECT_TRUE(second->Finish().ok());
}

TEST_F(RouterTest, TooLargeForEveryWorkerIsSaid) {
  FakeWorker::Options options;
  options.hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, "d0");
  options.hello.set_total_blocks(4);  // 64 tokens
  Add(options);
  StartRouter();
  AwaitServing(true);
  EXPECT_EQ(GetModel().max_context(), 64u);
  v1::GenerateRequest request = Request();
  for (int i = 0; i < 61; ++i) request.mutable_token_ids()->add_ids(1);
  const grpc::Status status = Generate(request)->Finish();
  EXPECT_EQ(status.error_code(), grpc::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("64"));
}

TEST_F(RouterTest, ModelAndHealthFollowTheWorkers) {
  FakeWorker* const prefill = AddPrefill("p0");
  AddDecode("d0");
  StartRouter();
  AwaitServing(true);
  const v1::GetModelResponse model = GetModel();
  EXPECT_EQ(model.name(), "stories");
  EXPECT_EQ(model.architecture(), "LlamaForCausalLM");
  EXPECT_EQ(model.identity(), "stories-weights");
  EXPECT_EQ(model.vocab_size(), 2048u);
  EXPECT_EQ(model.max_context(), 512u);
  EXPECT_EQ(model.block_size(), 16u);
  EXPECT_EQ(model.num_prefill_workers(), 1u);
  EXPECT_EQ(model.num_decode_workers(), 1u);
  prefill->Die();
  ASSERT_TRUE(AwaitThat([&] { return GetModel().num_prefill_workers() == 0; }));
  AwaitServing(true);  // the decode worker prefills by itself now
  workers_[1]->Die();
  AwaitServing(false);
}

TEST_F(RouterTest, HeartbeatsKeepTheLeases) {
  FakeWorker* const decode = AddDecode("d0");
  options_.cluster.lease = absl::Seconds(1);
  StartRouter();
  AwaitServing(true);
  for (int i = 0; i < 3; ++i) decode->NextHeartbeat();
}

TEST_F(RouterTest, AReportOfDrainingIsEnough) {
  AddPrefill("p0");
  FakeWorker* const leaving = AddDecode("d0");
  FakeWorker* const staying = AddDecode("d1");
  StartRouter();
  AwaitPairs(2);
  v1::LoadReport load;
  load.set_free_blocks(1000);
  load.set_draining(true);
  leaving->SendLoad(load);
  ASSERT_TRUE(AwaitThat([&] { return GetModel().num_decode_workers() <= 1; }));
  const auto call = Generate(Request());
  staying->NextReserve();
  EXPECT_FALSE(leaving->HasReserve());
}

TEST_F(RouterTest, WhatADrainingWorkerGivesBackGoesOnElsewhere) {
  AddPrefill("p0");
  FakeWorker* const first = AddDecode("d0");
  FakeWorker* const second = AddDecode("d1");
  options_.flow.max_attempts = 1;  // nobody's failure
  options_.metrics = "127.0.0.1:0";
  StartRouter();
  AwaitPairs(2);
  const auto call = Generate(Request());
  // Whichever was taken.
  ASSERT_TRUE(
      AwaitThat([&] { return first->HasReserve() || second->HasReserve(); }));
  FakeWorker* const taken = first->HasReserve() ? first : second;
  FakeWorker* const other = taken == first ? second : first;
  const uint64_t attempt = taken->NextReserve().attempt();
  v1::Outcome outcome;
  outcome.set_attempt(attempt);
  outcome.set_error("is draining");
  outcome.set_retryable(true);
  outcome.set_failure(v1::FAILURE_KIND_DRAINING);
  taken->SendOutcome(outcome);
  EXPECT_NE(other->NextReserve().attempt(), attempt);
  const auto made_anew = [&](const std::string& reason) {
    return Metric(
        "baton_prefill_recompute_total{model_name=\"stories\",role=\"router\","
        "worker=\"router\",reason=\"" +
        reason + "\"}");
  };
  EXPECT_EQ(made_anew("drained"), 1);
  EXPECT_EQ(made_anew("failed"), 0);
}

TEST_F(RouterTest, SaysWhatItKnowsOfItsCluster) {
  AddPrefill("p0");
  FakeWorker* const decode = AddDecode("d0");
  StartRouter();
  AwaitServing(true);
  v1::LoadReport load;
  load.set_running(3);
  load.set_free_blocks(700);
  decode->SendLoad(load);
  v1::GetClusterResponse cluster;
  ASSERT_TRUE(AwaitThat([&] {
    cluster = GetCluster();
    return cluster.workers_size() == 2 &&
           cluster.workers(1).free_blocks() == 700 &&
           cluster.links_size() > 0 && cluster.links(0).usable();
  })) << cluster.ShortDebugString();
  EXPECT_EQ(cluster.router_name(), "router");
  EXPECT_EQ(cluster.workers(0).name(), "p0");
  EXPECT_EQ(cluster.workers(0).role(), "prefill");
  EXPECT_EQ(cluster.workers(1).running(), 3u);
  EXPECT_EQ(cluster.workers(1).total_blocks(), 1000u);
  EXPECT_TRUE(cluster.workers(1).usable()) << cluster.workers(1).why_not();
  EXPECT_EQ(cluster.links(0).prefill_worker(), "p0");
  EXPECT_EQ(cluster.links(0).decode_worker(), "d0");
}

TEST_F(RouterTest, DrainLetsRunningRequestsFinish) {
  FakeWorker* const decode = AddDecode("d0");
  options_.loop.drain = absl::Seconds(60);
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = decode->NextReserve().attempt();
  std::thread drain([&] { router_->Drain(); });
  AwaitServing(false);
  // One that comes a moment after the health service has said so is taken yet,
  // and waits for the worker.
  EXPECT_TRUE(AwaitThat([&] {
    return Generate(Request(), absl::Seconds(1))->Finish().error_code() ==
           grpc::UNAVAILABLE;
  }));
  decode->SendToken(attempt, 0, kEos, v1::FINISH_REASON_STOP);
  decode->SendOk(attempt);
  EXPECT_TRUE(call->Finish().ok());
  drain.join();
}

TEST_F(RouterTest, DrainEndsWhatTakesTooLong) {
  FakeWorker* const decode = AddDecode("d0");
  options_.loop.drain = absl::Milliseconds(100);
  StartRouter();
  const auto call = Generate();
  const uint64_t attempt = decode->NextReserve().attempt();
  router_->Drain();
  EXPECT_EQ(call->Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_EQ(decode->NextCancel().attempt(), attempt);
}

}  // namespace
}  // namespace baton::router
