// Decode workers that check guesses at streams' next tokens: faster or not, the
// answers are those of one engine that makes one token at a time.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

using ::testing::HasSubstr;

class DraftsTest : public StreamsTest {
 protected:
  double Count(const std::string& worker, const std::string& metric) {
    const auto page = HttpGet(cluster_->Address(worker, "metrics"), "/metrics");
    EXPECT_TRUE(page.ok()) << page.status();
    return page.ok() ? MetricSum(*page, metric, "") : 0;
  }
  // That guesses were checked there, of which some came true.
  void ExpectGuessed(const std::string& worker) {
    const double drafts = Count(worker, "baton_spec_decode_num_drafts_total");
    const double tokens =
        Count(worker, "baton_spec_decode_num_draft_tokens_total");
    const double accepted =
        Count(worker, "baton_spec_decode_num_accepted_tokens_total");
    EXPECT_GT(drafts, 0) << worker;
    EXPECT_GE(tokens, drafts) << worker;
    EXPECT_GT(accepted, 0) << worker;
    EXPECT_LE(accepted, tokens) << worker;
  }

  const Flags drafts_ = {"--draft-tokens", "8", "--draft-when", "always"};
};

TEST_F(DraftsTest, AnswersAreTheSame) {
  StartCluster({.prefill = {{}}, .decode = {drafts_, {}}});
  std::vector<v1::GenerateRequest> requests = MakeRequests(8);
  // Some that are not to be guessed at, and one whose end comes by a token that
  // a guess may bring.
  requests[0].mutable_sampling()->set_repetition_penalty(1.3f);
  requests[1].mutable_sampling()->set_presence_penalty(0.5f);
  requests[2].set_top_logprobs(3);
  const std::vector<TokenId> whole = reference_->Tokens(requests[4]);
  requests[4].add_stop_token_ids(static_cast<uint32_t>(whole.at(200)));
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  ExpectGuessed("decode-0");
  EXPECT_EQ(Count("decode-1", "baton_spec_decode_num_drafts_total"), 0);
}

// With weights of fewer bits, too.
TEST_F(DraftsTest, AnswersAreTheSameWhereTheModelGuesses) {
  Flags guesses = drafts_;
  guesses.insert(guesses.end(), {"--draft-weights", "int4"});
  StartCluster({.prefill = {{}}, .decode = {guesses}, .dual = {guesses}});
  std::vector<v1::GenerateRequest> requests = MakeRequests(8);
  requests[0].mutable_sampling()->set_repetition_penalty(1.3f);
  requests[2].set_top_logprobs(3);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  ExpectGuessed("decode-0");
  EXPECT_GT(Count("decode-0", "baton_draft_step_seconds_count"), 0);
}

TEST_F(DraftsTest, AnswersAreTheSameWhenAWorkerDies) {
  StartCluster({.prefill = {{}, {}}, .decode = {drafts_, drafts_}});
  const bool hit = InterruptUntilHit(
      MakeRequests(8), [&] { cluster_->Kill("decode-0"); },
      [&] {
        LaunchAgain("baton-decode", "decode-0");
        CheckJoined(2, 2);
      });
  EXPECT_TRUE(hit) << "the kill hit no stream";
  ExpectGuessed("decode-1");
}

TEST_F(DraftsTest, AnswersAreTheSameWhereBlocksRunShort) {
  Flags flags = drafts_;
  flags.insert(flags.end(), {"--kv-memory", "256KiB", "--output-reserve", "24",
                             "--swap-memory", "4MiB"});
  StartCluster({.prefill = {}, .decode = {}, .dual = {flags, flags}});
  const auto requests = MakeRequests(10);
  CheckAnswers(requests, RunAndInterrupt(requests, [] {}));
  const auto both = [this](const std::string& metric) {
    return Count("dual-0", metric) + Count("dual-1", metric);
  };
  EXPECT_GT(both("baton_spec_decode_num_accepted_tokens_total"), 0);
  EXPECT_GT(both("baton_preemptions_total"), 0);
}

TEST_F(DraftsTest, AFlagThatCannotBeIsAnError) {
  const RunResult more = RunProgram(
      "baton-decode", {"--model", model_dir_, "--draft-tokens", "17"});
  EXPECT_FALSE(more.exit.clean());
  EXPECT_THAT(more.err, HasSubstr("--draft-tokens"));
  const RunResult alone = RunProgram(
      "baton-decode", {"--model", model_dir_, "--draft-weights", "int4"});
  EXPECT_FALSE(alone.exit.clean());
  EXPECT_THAT(alone.err, HasSubstr("--draft-weights needs --draft-tokens"));
}

}  // namespace
}  // namespace baton::test
