// Prompts that begin alike, on a cluster: what both workers have is neither
// computed nor moved again, and the answers are those of one engine that knows
// no cache.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

// With the blocks of 16 tokens that workers have unless told otherwise.
constexpr int kShared = 208;
// Long enough for the report of the hand-off to come before the end.
constexpr uint32_t kLongOutput = 100;

class PrefixCacheTest : public testing::Test {
 protected:
  void Start(const Flags& flags) {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    auto reference = Reference::Load(model_dir);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
    cluster_ = std::make_unique<Cluster>(model_dir);
    ClusterShape shape;
    shape.prefill = {flags};
    shape.decode = {flags};
    const absl::Status started = cluster_->Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    stub_ = cluster_->MakeStub();
  }

  // kShared tokens that are always the same, and 30 that go with `number`.
  std::vector<TokenId> Prompt(int number) const {
    std::vector<TokenId> prompt;
    for (int i = 0; i < kShared + 30; ++i) {
      prompt.push_back((i * 7 + (i < kShared ? 3 : number)) %
                       reference_->model().vocab_size);
    }
    return prompt;
  }

  // The answer, which is right.
  Answer Ask(const v1::GenerateRequest& request) {
    const Answer answer = Generate(*stub_, request, kPatience);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
    return answer;
  }

  double Metric(const std::string& worker, const std::string& name) {
    const auto text = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(text.ok()) << worker << ": " << text.status();
    return text.ok() ? MetricValue(*text, name) : -1;
  }

  void ExpectNothingInUse() {
    for (const char* worker : {"prefill-0", "decode-0"}) {
      EXPECT_TRUE(Eventually([&] {
        return Metric(worker, "baton_kv_blocks_in_use") == 0;
      })) << worker;
      EXPECT_EQ(Metric(worker, "baton_kv_cache_usage_perc"), 0) << worker;
    }
  }

  ScratchDir scratch_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

TEST_F(PrefixCacheTest, TheSecondRequestMovesOnlyWhatIsItsOwn) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const Answer first = Ask(GreedyRequest(Prompt(50), kLongOutput));
  const Answer second = Ask(GreedyRequest(Prompt(51), kLongOutput));
  const uint64_t all = first.last.timing().kv_transfer_bytes();
  EXPECT_EQ(second.last.timing().kv_transfer_bytes(), all / 15 * 2)
      << "of 15 blocks 13 are shared";
  EXPECT_EQ(first.last.usage().cached_prompt_tokens(), 0u);
  EXPECT_EQ(second.last.usage().cached_prompt_tokens(),
            static_cast<uint32_t>(kShared));
  ExpectNothingInUse();
  for (const char* worker : {"prefill-0", "decode-0"}) {
    EXPECT_EQ(Metric(worker, "baton_prefix_cache_queries_total"),
              2 * (kShared + 30))
        << worker;
    EXPECT_EQ(Metric(worker, "baton_prefix_cache_hits_total"), kShared)
        << worker;
    EXPECT_GE(Metric(worker, "baton_prefix_cache_blocks"), 15) << worker;
    EXPECT_EQ(Metric(worker, "baton_prefix_cache_evictions_total"), 0)
        << worker;
  }
  EXPECT_EQ(Metric("prefill-0", "baton_prompt_tokens_total"),
            2 * (kShared + 30) - kShared);
}

TEST_F(PrefixCacheTest, AConversationGoesOnWhereItStopped) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  std::vector<TokenId> said = Prompt(50);
  for (int turn = 0; turn < 3; ++turn) {
    const Answer answer = Ask(GreedyRequest(said, 40));
    said.insert(said.end(), answer.tokens.begin(), answer.tokens.end());
    for (TokenId token = 0; token < 7; ++token) said.push_back(token + turn);
    if (turn == 0) continue;
    // The block that the last answer ended in, and what was said since.
    const uint64_t bytes = answer.last.timing().kv_transfer_bytes();
    const uint64_t tokens = answer.last.usage().prompt_tokens();
    EXPECT_LE(bytes, 2 * 4096u) << tokens << " tokens";
  }
  ExpectNothingInUse();
}

TEST_F(PrefixCacheTest, OffMovesEverything) {
  ASSERT_NO_FATAL_FAILURE(Start({"--prefix-cache", "off"}));
  const Answer first = Ask(GreedyRequest(Prompt(50), kLongOutput));
  const Answer second = Ask(GreedyRequest(Prompt(51), kLongOutput));
  EXPECT_EQ(second.last.timing().kv_transfer_bytes(),
            first.last.timing().kv_transfer_bytes());
  EXPECT_EQ(second.last.usage().cached_prompt_tokens(), 0u);
  EXPECT_EQ(Metric("decode-0", "baton_prefix_cache_hits_total"), 0);
  EXPECT_EQ(Metric("decode-0", "baton_prefix_cache_blocks"), 0);
}

// Of the same prompt under two salts, neither finds what the other left.
TEST_F(PrefixCacheTest, SaltsKeepPromptsApart) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  const auto cached = [&](const std::string& salt) {
    v1::GenerateRequest request = GreedyRequest(Prompt(50), kLongOutput);
    request.set_cache_salt(salt);
    const Answer answer = Ask(request);
    return answer.last.usage().cached_prompt_tokens();
  };
  for (const char* salt : {"", "pepper", "salt"}) {
    EXPECT_EQ(cached(salt), 0u) << salt;
  }
  for (const char* salt : {"salt", "", "pepper"}) {
    EXPECT_GE(cached(salt), static_cast<uint32_t>(kShared)) << salt;
  }
  EXPECT_EQ(Metric("decode-0", "baton_prefix_cache_evictions_total"), 0);
  v1::GenerateRequest request = GreedyRequest(Prompt(50), 1);
  request.set_cache_salt(std::string(257, 's'));
  const Answer refused = Generate(*stub_, request, kPatience);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()),
              testing::StartsWith("cache_salt has 257 bytes"));
}

// So little memory that each prompt drives out what the last ones left.
TEST_F(PrefixCacheTest, ACrowdedPoolGivesTheSameAnswers) {
  ASSERT_NO_FATAL_FAILURE(Start({"--kv-memory", "100KiB"}));  // 25 blocks
  for (int i = 0; i < 12; ++i) {
    std::vector<TokenId> prompt = Prompt(50 + i);
    prompt[static_cast<size_t>(16 * (i % 5))] = i % 2;
    Ask(GreedyRequest(prompt, 20));
  }
  ExpectNothingInUse();
  EXPECT_GT(Metric("decode-0", "baton_prefix_cache_evictions_total"), 0);
  EXPECT_GT(Metric("decode-0", "baton_prefix_cache_hits_total"), 0);
}

}  // namespace
}  // namespace baton::test
