// The loops without a prefix cache: each request computes and moves all of its
// KV.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/await_that.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/worker/worker_loops_fixture.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

TEST_F(WorkerLoopsTest, AHandOffContinuesTheVerySameAnswer) {
  Start();
  const v1::SequenceSpec spec = Spec(45);
  const std::vector<uint32_t> expected = Expected(1, spec);
  ASSERT_EQ(expected.size(), 12u);

  SendReserve(2, spec);
  SendPrefill(2, spec);
  SendGrant(decode_->AwaitGrant(2));
  std::vector<v1::Token> tokens = prefill_->AwaitTokens(2, 1);
  EXPECT_EQ(tokens[0].index(), 0u);
  for (const v1::Token& token : decode_->AwaitTokens(2, 11)) {
    EXPECT_EQ(token.index(), tokens.size());
    tokens.push_back(token);
  }
  EXPECT_EQ(Ids(tokens), expected);
  EXPECT_EQ(tokens.back().finish_reason(), v1::FINISH_REASON_LENGTH);
  const v1::Outcome prefill = prefill_->AwaitOutcome(2);
  const v1::Outcome decode = decode_->AwaitOutcome(2);
  EXPECT_TRUE(prefill.ok()) << prefill.error();
  EXPECT_TRUE(decode.ok()) << decode.error();
  const engine::KvLayout& kv = prefill_worker_->engine()->kv_layout();
  EXPECT_EQ(prefill.kv_transfer_bytes(),
            static_cast<uint64_t>(kv.BlocksFor(45) * kv.block_bytes()));
  EXPECT_EQ(decode.kv_transfer_bytes(), prefill.kv_transfer_bytes());
  ExpectAllBlocksFree();
  const auto overlap =
      prefill_worker_->metrics()->transfer_overlap->Collect().histogram;
  EXPECT_EQ(overlap.sample_count, 1u);
  const auto extents =
      prefill_worker_->metrics()->transfer_descriptors->Collect().histogram;
  EXPECT_EQ(extents.sample_count, 1u);
  EXPECT_GE(extents.sample_sum, kv.num_layers);
  EXPECT_LE(extents.sample_sum, kv.num_layers * kv.BlocksFor(45));
}

TEST_F(WorkerLoopsTest, AGrantMayComeAfterPrefillIsDone) {
  Start();
  const v1::SequenceSpec spec = Spec(20);
  const std::vector<uint32_t> expected = Expected(1, spec);
  SendPrefill(2, spec);
  std::vector<v1::Token> tokens = prefill_->AwaitTokens(2, 1);
  SendReserve(2, spec);
  SendGrant(decode_->AwaitGrant(2));
  for (const v1::Token& token : decode_->AwaitTokens(2, 11)) {
    tokens.push_back(token);
  }
  EXPECT_EQ(Ids(tokens), expected);
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, ManyAtOnceGiveTheSameAnswersAsAlone) {
  Start();
  std::vector<v1::SequenceSpec> specs;
  std::vector<std::vector<uint32_t>> expected;
  for (uint64_t i = 0; i < 6; ++i) {
    specs.push_back(Spec(5 + 13 * static_cast<int>(i)));
    specs.back().mutable_sampling()->set_seed(i);
    expected.push_back(Expected(100 + i, specs.back()));
  }
  for (uint64_t i = 0; i < 6; ++i) {
    SendReserve(i, specs[i]);
    SendPrefill(i, specs[i]);
  }
  for (uint64_t i = 0; i < 6; ++i) SendGrant(decode_->AwaitGrant(i));
  for (uint64_t i = 0; i < 6; ++i) {
    std::vector<uint32_t> ids = Ids(prefill_->AwaitTokens(i, 1));
    for (uint32_t id : Ids(decode_->AwaitTokens(i, 11))) ids.push_back(id);
    EXPECT_EQ(ids, expected[i]) << "request " << i;
  }
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, ANewAttemptGoesOnWhereTheLastOneStopped) {
  Start();
  v1::SequenceSpec spec = Spec(30);
  const std::vector<uint32_t> expected = Expected(1, spec);
  for (int i = 0; i < 5; ++i) spec.add_tokens(expected[i]);
  SendReserve(2, spec);
  SendPrefill(2, spec);
  SendGrant(decode_->AwaitGrant(2));
  std::vector<v1::Token> tokens = prefill_->AwaitTokens(2, 1);
  EXPECT_EQ(tokens[0].index(), 5u);
  for (const v1::Token& token : decode_->AwaitTokens(2, 6)) {
    tokens.push_back(token);
  }
  EXPECT_EQ(Ids(tokens),
            std::vector<uint32_t>(expected.begin() + 5, expected.end()));
}

// Bias, least length and the likeliest tokens, whichever worker samples.
TEST_F(WorkerLoopsTest, AHandOffChangesNothingOfWhatComesWithATokenEither) {
  Start();
  v1::SequenceSpec spec = Spec(30);
  const std::vector<uint32_t> free = Expected(1, spec);
  // Its own tokens would end it at once, but may not come so early.
  for (int i = 0; i < 4; ++i) spec.add_stop_token_ids(free[i]);
  spec.set_min_output_tokens(6);
  spec.set_top_logprobs(5);
  for (uint32_t token : {40u, 41u, 42u}) {
    v1::LogitBias* bias = spec.mutable_sampling()->add_logit_bias();
    bias->set_token(token);
    bias->set_bias(2.0f);
  }
  SendReserve(2, spec, /*local=*/true);
  std::vector<v1::Token> expected = decode_->AwaitTokens(2, 6);
  while (expected.back().finish_reason() == v1::FINISH_REASON_UNSPECIFIED) {
    expected.push_back(decode_->AwaitTokens(2, 1).at(0));
  }

  SendReserve(3, spec);
  SendPrefill(3, spec);
  SendGrant(decode_->AwaitGrant(3));
  std::vector<v1::Token> tokens = prefill_->AwaitTokens(3, 1);
  for (v1::Token& token : decode_->AwaitTokens(3, expected.size() - 1)) {
    tokens.push_back(std::move(token));
  }
  ASSERT_EQ(tokens.size(), expected.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i].set_attempt(2);
    // Who computed the prompt says with the first token how long that took; no
    // two times are equal.
    for (v1::Token* token : {&tokens[i], &expected[i]}) {
      ASSERT_EQ(token->has_prompt(), i == 0);
      if (i > 0) continue;
      token->mutable_prompt()->clear_queue_seconds();
      token->mutable_prompt()->clear_prefill_seconds();
    }
    EXPECT_EQ(tokens[i].SerializeAsString(), expected[i].SerializeAsString())
        << "token " << i;
    ASSERT_EQ(tokens[i].top_size(), 5);
    for (int j = 1; j < 5; ++j) {
      EXPECT_GE(tokens[i].top(j - 1).logprob(), tokens[i].top(j).logprob());
    }
    const auto& stops = spec.stop_token_ids();
    const bool is_stop =
        std::find(stops.begin(), stops.end(), tokens[i].id()) != stops.end();
    EXPECT_EQ(tokens[i].finish_reason() == v1::FINISH_REASON_STOP, is_stop);
    EXPECT_FALSE(is_stop && i < 6) << "token " << i;
  }
  ExpectAllBlocksFree();
}

// The prompt's own log-probabilities, of whoever computes it, in whatever
// chunks and from whichever token on; caches are not asked for what is wanted.
TEST_F(WorkerLoopsTest, ThePromptsOwnLogprobsAreTheSameEverywhere) {
  WorkerOptions prefill = Options("prefill-0");
  WorkerOptions decode = Options("decode-0");
  prefill.prefix_cache = decode.prefix_cache = true;
  prefill.token_budget = 7;
  Start(prefill, decode);
  v1::SequenceSpec spec = Spec(40, /*max_output=*/3);
  spec.mutable_prompt_logprobs()->set_first(1);
  spec.mutable_prompt_logprobs()->set_top(3);
  // Of an attempt: what is told of each token, until the first that comes out.
  struct Told {
    std::vector<float> logprobs;
    std::vector<uint32_t> ids;
    std::vector<float> top;
    int messages = 0;
  };
  const auto await = [&](RouterStream* stream, uint64_t attempt,
                         uint32_t first) {
    Told told;
    bool over = false;
    while (!over) {
      const v1::WorkerMessage message =
          stream->Await([&](const v1::WorkerMessage& m) {
            return m.has_tokens() || m.has_refusal();
          });
      if (!message.has_tokens()) {
        ADD_FAILURE() << message.refusal().message();
        break;
      }
      for (const v1::PromptLogprobs& wire :
           message.tokens().prompt_logprobs()) {
        EXPECT_EQ(wire.attempt(), attempt);
        EXPECT_EQ(wire.first(), first + told.logprobs.size());
        EXPECT_EQ(wire.top(), 3u);
        ++told.messages;
        told.logprobs.insert(told.logprobs.end(), wire.logprobs().begin(),
                             wire.logprobs().end());
        told.ids.insert(told.ids.end(), wire.top_ids().begin(),
                        wire.top_ids().end());
        told.top.insert(told.top.end(), wire.top_logprobs().begin(),
                        wire.top_logprobs().end());
      }
      for (const v1::Token& token : message.tokens().tokens()) {
        over |= token.attempt() == attempt && token.index() == 0;
      }
    }
    return told;
  };
  SendReserve(1, spec, /*local=*/true);
  const Told local = await(decode_.get(), 1, 1);
  EXPECT_TRUE(decode_->AwaitOutcome(1).ok());
  ASSERT_EQ(local.logprobs.size(), 39u);
  ASSERT_EQ(local.top.size(), 3u * 39u);
  EXPECT_EQ(local.messages, 3);  // 16 tokens at a time
  for (size_t i = 0; i < local.logprobs.size(); ++i) {
    EXPECT_LT(local.logprobs[i], 0);
    EXPECT_LE(local.logprobs[i], local.top[3 * i]);
    for (size_t j = 0; j < 3; ++j) {
      if (local.ids[3 * i + j] == spec.tokens(static_cast<int>(i) + 1)) {
        EXPECT_EQ(local.top[3 * i + j], local.logprobs[i]);
      }
    }
  }

  // Twice: then both caches have the prompt. And what is known is not told.
  uint64_t next = 2;
  for (const uint32_t first : {1u, 1u, 23u, 39u}) {
    const uint64_t number = next++;
    spec.mutable_prompt_logprobs()->set_first(first);
    SendPrefill(number, spec);
    v1::SequenceSpec plain = spec;
    plain.clear_prompt_logprobs();
    SendReserve(number, plain);
    SendGrant(decode_->AwaitGrant(number));
    const Told told = await(prefill_.get(), number, first);
    const auto from = static_cast<int64_t>(first) - 1;
    EXPECT_EQ(told.logprobs, std::vector<float>(local.logprobs.begin() + from,
                                                local.logprobs.end()));
    EXPECT_EQ(told.ids, std::vector<uint32_t>(local.ids.begin() + 3 * from,
                                              local.ids.end()));
    EXPECT_EQ(told.top, std::vector<float>(local.top.begin() + 3 * from,
                                           local.top.end()));
    const v1::Outcome outcome = prefill_->AwaitOutcome(number);
    EXPECT_TRUE(outcome.ok()) << outcome.error();
    // Whole blocks in front of the token before the first that is wanted.
    EXPECT_EQ(outcome.cached_tokens(), number == 2 ? 0 : (first - 1) / 16 * 16);
    EXPECT_TRUE(decode_->AwaitOutcome(number).ok());
  }
  EXPECT_THAT(prefill_worker_->MetricsText(),
              ::testing::HasSubstr("baton_prompt_logprobs_total"));
  // Nobody computes a prompt whose KV comes.
  spec.mutable_prompt_logprobs()->set_first(1);
  SendReserve(50, spec);
  EXPECT_EQ(decode_->AwaitRefusal(50).reason(), v1::REFUSAL_REASON_INVALID);
}

TEST_F(WorkerLoopsTest, AFirstTokenThatEndsTheRequestNeedsNoHandOff) {
  Start();
  SendPrefill(1, Spec(20, /*max_output=*/1));
  const std::vector<v1::Token> tokens = prefill_->AwaitTokens(1, 1);
  EXPECT_EQ(tokens[0].finish_reason(), v1::FINISH_REASON_LENGTH);
  const v1::Outcome outcome = prefill_->AwaitOutcome(1);
  EXPECT_TRUE(outcome.ok());
  EXPECT_EQ(outcome.kv_transfer_bytes(), 0u);
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, CancelFreesBothSidesAtAnyStage) {
  Start();
  // Reserved, never sent; computed, never granted; running.
  SendReserve(1, Spec(40));
  decode_->AwaitGrant(1);
  SendPrefill(2, Spec(40));
  prefill_->AwaitTokens(2, 1);
  SendReserve(3, Spec(20, /*max_output=*/400), /*local=*/true);
  decode_->AwaitTokens(3, 3);
  // Half way through a hand-off.
  SendReserve(4, Spec(300));
  SendPrefill(4, Spec(300));
  SendGrant(decode_->AwaitGrant(4));
  for (uint64_t attempt : {1, 3, 4}) SendCancel(decode_.get(), attempt);
  for (uint64_t attempt : {2, 4}) SendCancel(prefill_.get(), attempt);
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, ALeaseThatRunsOutGivesTheBlocksBack) {
  Start();
  SendReserve(1, Spec(40));
  decode_->AwaitGrant(1);
  SendPrefill(2, Spec(40));
  prefill_->AwaitTokens(2, 1);  // from now on it waits for a grant
  // A router that lives, but says nothing after these words: a hello sets how
  // long it may.
  v1::RouterMessage hello;
  hello.mutable_hello()->set_router_name("test");
  hello.mutable_hello()->set_lease_ms(1000);
  decode_->Send(hello);
  prefill_->Send(hello);
  const v1::Outcome reserved = decode_->AwaitOutcome(1);
  const v1::Outcome waiting = prefill_->AwaitOutcome(2);
  for (const v1::Outcome& outcome : {reserved, waiting}) {
    EXPECT_FALSE(outcome.ok());
    EXPECT_TRUE(outcome.retryable());
    EXPECT_THAT(outcome.error(), HasSubstr("silent"));
  }
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, ARouterThatIsGoneLeavesNothingBehind) {
  Start();
  SendReserve(1, Spec(40));
  decode_->AwaitGrant(1);
  SendReserve(2, Spec(20, /*max_output=*/400), /*local=*/true);
  decode_->AwaitTokens(2, 1);
  SendPrefill(3, Spec(40));
  prefill_->AwaitTokens(3, 1);
  decode_ = std::make_unique<RouterStream>(decode_worker_->address());
  prefill_ = std::make_unique<RouterStream>(prefill_worker_->address());
  ExpectAllBlocksFree();
}

TEST_F(WorkerLoopsTest, RefusesWithTheReason) {
  WorkerOptions decode = Options("decode-0");
  decode.max_sequences = 1;
  Start(Options("prefill-0"), decode);
  v1::SequenceSpec bad = Spec(10);
  bad.set_tokens(3, 4000);
  SendReserve(1, bad);
  v1::Refusal refusal = decode_->AwaitRefusal(1);
  EXPECT_EQ(refusal.reason(), v1::REFUSAL_REASON_INVALID);
  EXPECT_THAT(refusal.message(), HasSubstr("4000"));
  SendPrefill(1, bad);
  EXPECT_EQ(prefill_->AwaitRefusal(1).reason(), v1::REFUSAL_REASON_INVALID);

  SendReserve(2, Spec(10, /*max_output=*/100000));
  EXPECT_EQ(decode_->AwaitRefusal(2).reason(), v1::REFUSAL_REASON_TOO_LARGE);

  SendReserve(3, Spec(10));
  decode_->AwaitGrant(3);
  SendReserve(4, Spec(10));
  refusal = decode_->AwaitRefusal(4);
  EXPECT_EQ(refusal.reason(), v1::REFUSAL_REASON_NO_SEQUENCES);
  EXPECT_GT(refusal.retry_after_ms(), 0u);
}

TEST_F(WorkerLoopsTest, AGrantOfALifeThatIsOverFailsTheAttempt) {
  Start();
  SendPrefill(1, Spec(20));
  v1::Grant grant;
  grant.set_attempt(1);
  grant.set_transfer_id(77);
  grant.set_generation(1);
  grant.set_decode_incarnation(decode_->hello().incarnation() + 1);
  grant.set_num_tokens(20);
  SendGrant(grant);
  const v1::Outcome outcome = prefill_->AwaitOutcome(1);
  EXPECT_FALSE(outcome.ok());
  EXPECT_TRUE(outcome.retryable());
  ExpectAllBlocksFree();
}

// KV of an attempt comes from the worker that the router gave it to, whoever
// else is paired and knows the transfer's name.
TEST_F(WorkerLoopsTest, KvOfAnotherWorkerIsNotTaken) {
  Start();
  const v1::SequenceSpec spec = Spec(45);
  v1::RouterMessage reserve;
  reserve.mutable_reserve()->set_attempt(1);
  *reserve.mutable_reserve()->mutable_sequence() = spec;
  reserve.mutable_reserve()->set_prefill_incarnation(
      prefill_->hello().incarnation() + 1);
  decode_->Send(reserve);
  SendPrefill(1, spec);
  SendGrant(decode_->AwaitGrant(1));
  const v1::Outcome outcome = prefill_->AwaitOutcome(1);
  EXPECT_FALSE(outcome.ok());
  EXPECT_TRUE(outcome.retryable());
  EXPECT_THAT(outcome.error(), HasSubstr("wrong_peer"));
  SendCancel(decode_.get(), 1);
  ExpectAllBlocksFree();

  // Nor does it wait for one whose life is over.
  reserve.mutable_reserve()->set_attempt(2);
  reserve.mutable_reserve()->set_prefill_incarnation(
      prefill_->hello().incarnation());
  decode_->Send(reserve);
  decode_->AwaitGrant(2);
  prefill_.reset();
  prefill_worker_.reset();
  EXPECT_FALSE(decode_->AwaitOutcome(2).ok());
  decode_->AwaitFreeBlocks(decode_->hello().total_blocks());
}

TEST_F(WorkerLoopsTest, ADecodeWorkerThatDiesMidWayFailsTheHandOff) {
  Start();
  SendReserve(1, Spec(300));
  const v1::Grant grant = decode_->AwaitGrant(1);
  decode_.reset();
  decode_worker_.reset();
  SendPrefill(1, Spec(300));
  SendGrant(grant);
  const v1::Outcome outcome = prefill_->AwaitOutcome(1);
  EXPECT_FALSE(outcome.ok());
  EXPECT_TRUE(outcome.retryable());
  prefill_->AwaitFreeBlocks(prefill_->hello().total_blocks());
}

TEST_F(WorkerLoopsTest, NothingIsKeptOfADecodeWorkerThatIsGone) {
  Start();
  const auto pair_report = [](const v1::WorkerMessage& m) {
    return m.has_pair();
  };
  const auto has_link = [this] {
    return absl::StrContains(prefill_worker_->MetricsText(),
                             "baton_kv_link_bandwidth_bytes{");
  };
  ASSERT_TRUE(test::AwaitThat(has_link));
  decode_.reset();
  decode_worker_.reset();
  v1::WorkerMessage report;
  do {  // the measurement of the link was one, too
    report = prefill_->Await(pair_report);
    ASSERT_TRUE(report.has_pair());
  } while (report.pair().paired());
  EXPECT_FALSE(has_link());
}

TEST_F(WorkerLoopsTest, PairsThatFailedLeaveRoomForOthers) {
  Start();
  v1::RouterMessage message;
  const auto answer = [&] {
    prefill_->Send(message);
    return prefill_->Await([&](const v1::WorkerMessage& m) {
      return m.has_pair() && m.pair().decode_incarnation() ==
                                 message.pair().decode_incarnation();
    });
  };
  // More decode workers than a prefill worker keeps pairs of.
  for (int i = 0; i < 4100; ++i) {
    message.mutable_pair()->set_decode_incarnation(i + 1);
    message.mutable_pair()->set_data_address(absl::StrCat("gone-", i));
    const v1::WorkerMessage refused = answer();
    ASSERT_FALSE(refused.pair().paired());
    ASSERT_THAT(refused.pair().reason(), HasSubstr(absl::StrCat("gone-", i)));
  }
  message.mutable_pair()->set_decode_incarnation(
      decode_->hello().incarnation());
  message.mutable_pair()->set_data_address(decode_->hello().data_address());
  EXPECT_TRUE(answer().pair().paired());
}

TEST_F(WorkerLoopsTest, DrainingFinishesWhatRunsAndRefusesTheRest) {
  Start();
  SendReserve(1, Spec(20, /*max_output=*/60), /*local=*/true);
  decode_->AwaitTokens(1, 1);
  decode_worker_->loop()->RequestDrain();
  SendReserve(2, Spec(10));
  // Refused if it came in time; the loop may have ended before.
  EXPECT_EQ(decode_->AwaitTokens(1, 59).back().finish_reason(),
            v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(decode_->AwaitOutcome(1).ok());
  decode_worker_->Join();
}

TEST_F(WorkerLoopsTest, DifferentModelsAreNotPaired) {
  const test::ScratchDir scratch;
  const std::string& other = scratch.path();
  test::TinyModelOptions model;
  model.seed = 2;
  model.layers = 3;
  ASSERT_TRUE(test::WriteTinyModel(other, model).ok());
  WorkerOptions options = Options("decode-0");
  options.engine.model_dir = other;
  InProcessWorker prefill(v1::WORKER_ROLE_PREFILL, Options("prefill-0"));
  InProcessWorker decode(v1::WORKER_ROLE_DECODE, options);
  RouterStream to_prefill(prefill.address()), to_decode(decode.address());
  v1::RouterMessage message;
  message.mutable_pair()->set_decode_incarnation(
      to_decode.hello().incarnation());
  message.mutable_pair()->set_data_address(to_decode.hello().data_address());
  to_prefill.Send(message);
  const v1::WorkerMessage answer =
      to_prefill.Await([](const v1::WorkerMessage& m) { return m.has_pair(); });
  EXPECT_FALSE(answer.pair().paired());
  EXPECT_THAT(answer.pair().reason(), HasSubstr("num_layers"));
  EXPECT_THAT(answer.pair().reason(), HasSubstr("model_identity"));
}

}  // namespace
}  // namespace baton::worker
