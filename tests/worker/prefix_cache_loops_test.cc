// The prefix caches of a prefill and a decode worker: what is found there is
// neither computed nor moved again, and the answer is the same.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/worker_loops_fixture.h"

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMaxOutput = 12;

class PrefixCacheLoopsTest : public WorkerLoopsTest {
 protected:
  // How one request went.
  struct Ran {
    std::vector<v1::Token> tokens;
    v1::Grant grant;
    v1::Outcome prefill, decode;
  };

  static WorkerOptions CachingOptions(const std::string& name) {
    WorkerOptions options = Options(name);
    options.prefix_cache = true;
    return options;
  }

  void SetUp() override {
    Start(CachingOptions("prefill-0"), CachingOptions("decode-0"));
    cold_worker_ = std::make_unique<InProcessWorker>(v1::WORKER_ROLE_DECODE,
                                                     Options("cold"));
    cold_ = std::make_unique<RouterStream>(cold_worker_->address());
  }

  // The first token, and no other, tells what `by` says of the prompt.
  static void ExpectPrompt(const std::vector<v1::Token>& tokens,
                           const v1::Outcome& by) {
    ASSERT_FALSE(tokens.empty());
    const v1::PromptReport& prompt = tokens[0].prompt();
    EXPECT_EQ(prompt.cached_tokens(), by.cached_tokens());
    EXPECT_EQ(prompt.queue_seconds(), by.queue_seconds());
    EXPECT_EQ(prompt.prefill_seconds(), by.prefill_seconds());
    EXPECT_GT(prompt.prefill_seconds(), 0);
    for (size_t i = 1; i < tokens.size(); ++i) {
      EXPECT_FALSE(tokens[i].has_prompt()) << i;
    }
  }

  // From prompt to end, over both workers.
  Ran Run(const v1::SequenceSpec& spec) {
    const uint64_t attempt = ++last_attempt_;
    SendReserve(attempt, spec);
    SendPrefill(attempt, spec);
    return Finish(attempt, spec);
  }
  Ran Finish(uint64_t attempt, const v1::SequenceSpec& spec) {
    Ran ran;
    ran.grant = decode_->AwaitGrant(attempt);
    SendGrant(ran.grant);
    ran.tokens = prefill_->AwaitTokens(attempt, 1);
    for (v1::Token& token :
         decode_->AwaitTokens(attempt, spec.max_output_tokens() - 1)) {
      ran.tokens.push_back(std::move(token));
    }
    ran.prefill = prefill_->AwaitOutcome(attempt);
    ran.decode = decode_->AwaitOutcome(attempt);
    EXPECT_TRUE(ran.prefill.ok()) << ran.prefill.error();
    EXPECT_TRUE(ran.decode.ok()) << ran.decode.error();
    EXPECT_EQ(ran.prefill.kv_transfer_bytes(), ran.decode.kv_transfer_bytes());
    ExpectPrompt(ran.tokens, ran.prefill);
    return ran;
  }

  // On the prefill worker alone.
  v1::Outcome RunPrefill(v1::SequenceSpec spec) {
    spec.set_max_output_tokens(1);
    const uint64_t attempt = ++last_attempt_;
    SendPrefill(attempt, spec);
    return prefill_->AwaitOutcome(attempt);
  }

  // On the decode worker alone.
  Ran RunLocally(const v1::SequenceSpec& spec) {
    return RunLocally(spec, ++last_attempt_, decode_.get());
  }

  // That the answer is the one of a worker that has no cache: token for token,
  // and bit for bit in what the model made of them.
  void ExpectAnswerOf(const v1::SequenceSpec& spec, const Ran& ran) {
    const Ran cold = RunLocally(spec, ++last_attempt_, cold_.get());
    ASSERT_EQ(ran.tokens.size(), cold.tokens.size());
    for (size_t i = 0; i < cold.tokens.size(); ++i) {
      EXPECT_EQ(ran.tokens[i].id(), cold.tokens[i].id()) << i;
      EXPECT_EQ(ran.tokens[i].logprob(), cold.tokens[i].logprob()) << i;
    }
  }

  uint64_t BytesOf(int blocks) {
    const engine::KvLayout& kv = decode_worker_->engine()->kv_layout();
    return static_cast<uint64_t>(blocks * kv.block_bytes());
  }

  // The tokens from `from` on are others.
  static v1::SequenceSpec WithOtherTokens(v1::SequenceSpec spec, int from) {
    for (int i = from; i < spec.tokens_size(); ++i) {
      spec.set_tokens(i, (spec.tokens(i) + 100) % 256);
    }
    return spec;
  }

  static Ran RunLocally(const v1::SequenceSpec& spec, uint64_t attempt,
                        RouterStream* worker) {
    v1::RouterMessage message;
    message.mutable_reserve()->set_attempt(attempt);
    *message.mutable_reserve()->mutable_sequence() = spec;
    message.mutable_reserve()->set_local_prefill(true);
    worker->Send(message);
    Ran ran;
    ran.tokens = worker->AwaitTokens(attempt, spec.max_output_tokens());
    ran.decode = worker->AwaitOutcome(attempt);
    EXPECT_TRUE(ran.decode.ok()) << ran.decode.error();
    return ran;
  }

  std::unique_ptr<InProcessWorker> cold_worker_;
  std::unique_ptr<RouterStream> cold_;
  uint64_t last_attempt_ = 0;
};

TEST_F(PrefixCacheLoopsTest, OnlyWhatIsMissingIsComputedAndMoved) {
  const v1::SequenceSpec first = Spec(45);
  const Ran cold = Run(first);
  EXPECT_EQ(cold.grant.first_token(), 0u);
  EXPECT_EQ(cold.grant.num_tokens(), 45u);
  EXPECT_EQ(cold.prefill.cached_tokens(), 0u);
  EXPECT_EQ(cold.decode.kv_transfer_bytes(), BytesOf(3));
  ExpectAnswerOf(first, cold);

  // The second half of its last full block is new.
  const v1::SequenceSpec second = WithOtherTokens(Spec(70), 40);
  const Ran warm = Run(second);
  EXPECT_EQ(warm.grant.first_token(), 32u);
  EXPECT_EQ(warm.grant.num_tokens(), 38u);
  EXPECT_EQ(warm.prefill.cached_tokens(), 32u);
  EXPECT_EQ(warm.decode.cached_tokens(), 32u);
  EXPECT_EQ(warm.decode.kv_transfer_bytes(), BytesOf(3));
  ExpectAnswerOf(second, warm);

  const Ran again = Run(first);
  EXPECT_EQ(again.decode.kv_transfer_bytes(), BytesOf(1));
  ExpectAnswerOf(first, again);
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, WithAllOfThePromptCachedOnlyTheTokenComes) {
  const v1::SequenceSpec spec = Spec(32);
  ExpectAnswerOf(spec, Run(spec));
  const Ran warm = Run(spec);
  EXPECT_EQ(warm.grant.first_token(), 32u);
  EXPECT_EQ(warm.grant.num_tokens(), 0u);
  EXPECT_EQ(warm.decode.cached_tokens(), 32u);
  // The prefill worker computes the last token, and its block with it.
  EXPECT_EQ(warm.prefill.cached_tokens(), 16u);
  EXPECT_EQ(warm.decode.kv_transfer_bytes(), 0u);
  ExpectAnswerOf(spec, warm);
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, APrefixThatOnlyThePrefillWorkerHasIsSent) {
  const v1::SequenceSpec spec = Spec(100);
  EXPECT_TRUE(RunPrefill(spec).ok());
  // The grant before the prompt, and behind it.
  for (const bool grant_first : {true, false}) {
    const v1::SequenceSpec alike = WithOtherTokens(spec, grant_first ? 50 : 80);
    const uint64_t attempt = ++last_attempt_;
    Ran ran;
    if (grant_first) {
      SendReserve(attempt, alike);
      SendPrefill(attempt, alike);
      ran = Finish(attempt, alike);
    } else {
      SendPrefill(attempt, alike);
      std::vector<v1::Token> first = prefill_->AwaitTokens(attempt, 1);
      SendReserve(attempt, alike);
      ran.grant = decode_->AwaitGrant(attempt);
      SendGrant(ran.grant);
      ran.tokens = decode_->AwaitTokens(attempt, kMaxOutput - 1);
      ran.tokens.insert(ran.tokens.begin(), first[0]);
      ran.prefill = prefill_->AwaitOutcome(attempt);
      ran.decode = decode_->AwaitOutcome(attempt);
    }
    EXPECT_EQ(ran.prefill.cached_tokens(), grant_first ? 48u : 80u);
    EXPECT_EQ(ran.decode.cached_tokens(), grant_first ? 0u : 48u);
    EXPECT_EQ(ran.decode.kv_transfer_bytes(), BytesOf(grant_first ? 7 : 4));
    ExpectAnswerOf(alike, ran);
  }
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, APrefixThatOnlyTheDecodeWorkerHasIsNotSent) {
  const v1::SequenceSpec spec = Spec(45);
  const Ran local = RunLocally(spec);
  EXPECT_EQ(local.decode.cached_tokens(), 0u);
  ExpectPrompt(local.tokens, local.decode);
  ExpectAnswerOf(spec, local);
  const Ran ran = Run(spec);
  EXPECT_EQ(ran.prefill.cached_tokens(), 0u);
  EXPECT_EQ(ran.decode.cached_tokens(), 32u);
  EXPECT_EQ(ran.decode.kv_transfer_bytes(), BytesOf(1));
  ExpectAnswerOf(spec, ran);
}

TEST_F(PrefixCacheLoopsTest, ALocalPrefillBeginsBehindWhatIsCached) {
  const v1::SequenceSpec spec = Spec(48);
  Run(spec);
  const Ran local = RunLocally(spec);
  EXPECT_EQ(local.decode.cached_tokens(), 32u);  // all but the last block
  ExpectAnswerOf(spec, local);
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, TheNextTurnFindsTheAnswerOfTheLast) {
  v1::SequenceSpec spec = Spec(45, /*max_output=*/40);
  const Ran first = Run(spec);
  for (const v1::Token& token : first.tokens) spec.add_tokens(token.id());
  for (uint32_t token = 0; token < 10; ++token) spec.add_tokens(token);
  spec.set_prompt_length(static_cast<uint32_t>(spec.tokens_size()));
  spec.set_max_output_tokens(kMaxOutput);
  const Ran second = Run(spec);
  // 84 tokens were computed: all but the last one of the answer.
  EXPECT_EQ(second.decode.cached_tokens(), 80u);
  EXPECT_EQ(second.prefill.cached_tokens(), 32u);
  EXPECT_EQ(second.decode.kv_transfer_bytes(), BytesOf(1));
  ExpectAnswerOf(spec, second);
}

TEST_F(PrefixCacheLoopsTest, ManyAlikeAtOnceGetTheirAnswers) {
  std::vector<v1::SequenceSpec> specs;
  for (int i = 0; i < 6; ++i) {
    specs.push_back(WithOtherTokens(Spec(100), 40 + 8 * (i / 2)));
    specs.back().mutable_sampling()->set_seed(static_cast<uint64_t>(i));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    SendReserve(100 + i, specs[i]);
    SendPrefill(100 + i, specs[i]);
  }
  std::vector<Ran> ran;
  for (size_t i = 0; i < specs.size(); ++i) {
    ran.push_back(Finish(100 + i, specs[i]));
  }
  for (size_t i = 0; i < specs.size(); ++i) ExpectAnswerOf(specs[i], ran[i]);
  // The later ones began when the earlier ones were computed.
  EXPECT_GE(ran.back().prefill.cached_tokens(), 32u);
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, WhatDidNotLandIsNotCached) {
  const v1::SequenceSpec spec = Spec(45);
  // Reserved, and given up before anything came.
  SendReserve(100, spec);
  decode_->AwaitGrant(100);
  SendCancel(decode_.get(), 100);
  // All of it came, and it was not what was reserved for: the commit says so.
  v1::SequenceSpec other = spec;
  other.set_prompt_length(44);
  SendReserve(101, spec);
  SendPrefill(101, other);
  SendGrant(decode_->AwaitGrant(101));
  const v1::Outcome failed = decode_->AwaitOutcome(101);
  EXPECT_FALSE(failed.ok());
  EXPECT_THAT(failed.error(), HasSubstr("another sequence"));
  const Ran ran = Run(spec);
  EXPECT_EQ(ran.grant.first_token(), 0u);
  EXPECT_EQ(ran.decode.cached_tokens(), 0u);
  ExpectAnswerOf(spec, ran);
  ExpectAllBlocksFree();
}

TEST_F(PrefixCacheLoopsTest, APoolThatIsFullOfCacheServesTheNext) {
  WorkerOptions prefill = CachingOptions("prefill-0");
  WorkerOptions decode = CachingOptions("decode-0");
  for (WorkerOptions* options : {&prefill, &decode}) {
    options->engine.kv_memory_bytes =
        10 * decode_worker_->engine()->kv_layout().block_bytes();
  }
  Start(prefill, decode);
  ASSERT_EQ(decode_->hello().total_blocks(), 10u);
  // Each needs six blocks on the decode worker.
  for (int i = 0; i < 8; ++i) {
    v1::SequenceSpec spec = Spec(80);
    spec.set_tokens(0, static_cast<uint32_t>(i % 4));
    const Ran ran = Run(spec);
    ExpectAnswerOf(spec, ran);
  }
  ExpectAllBlocksFree();
  const Ran warm = Run([] {
    v1::SequenceSpec spec = Spec(80);
    spec.set_tokens(0, 3);
    return spec;
  }());
  EXPECT_EQ(warm.decode.cached_tokens(), 80u);
}

TEST_F(PrefixCacheLoopsTest, OffFindsNothing) {
  Start(Options("prefill-0"), Options("decode-0"));
  const v1::SequenceSpec spec = Spec(45);
  for (int i = 0; i < 2; ++i) {
    const Ran ran = Run(spec);
    EXPECT_EQ(ran.decode.cached_tokens(), 0u);
    EXPECT_EQ(ran.prefill.cached_tokens(), 0u);
    EXPECT_EQ(ran.decode.kv_transfer_bytes(), BytesOf(3));
    ExpectAnswerOf(spec, ran);
  }
}

}  // namespace
}  // namespace baton::worker
