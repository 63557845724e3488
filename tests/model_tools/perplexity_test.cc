#include "model_tools/perplexity.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::model_tools {
namespace {

using ::testing::HasSubstr;

TEST(CutWindowsTest, ScoreEveryTokenButTheFirstOnce) {
  for (const int64_t tokens : {2, 3, 9, 10, 11, 50, 101}) {
    for (const int32_t stride : {1, 4, 9}) {
      int64_t next = 1;
      for (const ScoredWindow& window : CutWindows(tokens, 10, stride)) {
        EXPECT_EQ(window.first_scored, next);
        EXPECT_LE(window.end - window.begin, 10);
        EXPECT_LT(window.begin, window.first_scored);
        // What stands before is long where it can be.
        if (window.begin > 0) {
          EXPECT_GE(window.first_scored - window.begin, 10 - stride);
        }
        next = window.end;
      }
      EXPECT_EQ(next, tokens);
    }
  }
  EXPECT_TRUE(CutWindows(1, 10, 4).empty());
}

TEST(SummarizeScoresTest, IsTheExponentialOfTheMean) {
  const Perplexity p = SummarizeScores({1.0f, 2.0f, 3.0f, 2.0f});
  EXPECT_EQ(p.scored, 4);
  EXPECT_DOUBLE_EQ(p.mean, 2.0);
  EXPECT_DOUBLE_EQ(p.mean_error, std::sqrt(2.0 / 3 / 4));
  EXPECT_DOUBLE_EQ(p.value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(p.error, std::exp(2.0) * p.mean_error);
  EXPECT_EQ(SummarizeScores({1.5f}).mean_error, 0.0);
}

// Says that the probability of target t after token p is 1 / (1 + p + t), and
// checks the plans.
class FakeEngine final : public engine::Engine {
 public:
  FakeEngine() {
    config_.vocab_size = 100;
    config_.max_position = 64;
    layout_.num_blocks = 4;
    layout_.block_size = 16;
  }

  const engine::ModelConfig& model() const override { return config_; }
  const std::string& model_identity() const override { return name_; }
  const std::string& backend_name() const override { return name_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<const engine::AdapterInfo> adapters() const override {
    return adapters_;
  }
  absl::Span<std::byte> kv_memory() override { return {}; }
  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook) override {
    EXPECT_EQ(plan.sequences.size(), 1u);
    const scheduling::PlannedSequence& s = plan.sequences[0];
    EXPECT_EQ(s.adapter, adapters_.empty() ? scheduling::kNoAdapter : 0);
    EXPECT_LE(static_cast<int64_t>(s.first_position + s.tokens.size()),
              static_cast<int64_t>(s.blocks.size()) * 16);
    EXPECT_EQ(s.first_position == 0 || s.first_position == next_, true);
    next_ = s.first_position + static_cast<int64_t>(s.tokens.size());
    scheduling::StepResult result;
    if (s.targets.empty()) return result;
    EXPECT_EQ(s.targets.size(), s.tokens.size());
    result.target_logprobs.emplace_back();
    for (size_t i = 0; i < s.targets.size(); ++i) {
      result.target_logprobs[0].push_back(
          broken_ ? std::numeric_limits<float>::quiet_NaN()
                  : -std::log(1.0f + s.tokens[i] + s.targets[i]));
    }
    return result;
  }

  engine::ModelConfig config_;
  engine::KvLayout layout_;
  std::vector<engine::AdapterInfo> adapters_;
  std::string name_ = "fake";
  int64_t next_ = 0;
  bool broken_ = false;
};

class MeasurePerplexityTest : public testing::Test {
 protected:
  absl::StatusOr<Perplexity> Measure(const std::vector<TokenId>& tokens) {
    return MeasurePerplexity(
        &engine_, tokens, options_,
        [&](const Perplexity& so_far) { progress_.push_back(so_far.scored); });
  }

  FakeEngine engine_;
  PerplexityOptions options_ = {.window = 16, .stride = 5, .chunk = 6};
  std::vector<int64_t> progress_;
};

TEST_F(MeasurePerplexityTest, IsThatOfTheAdapterIfThereIsOne) {
  engine_.adapters_ = {{.name = "a"}, {.name = "b"}};
  EXPECT_TRUE(Measure(std::vector<TokenId>(30, 1)).ok());
}

TEST_F(MeasurePerplexityTest, ScoresEachTokenAfterTheOneBeforeIt) {
  std::vector<TokenId> tokens;
  double sum = 0;
  for (TokenId i = 0; i < 50; ++i) tokens.push_back(i * 7 % 100);
  for (size_t i = 1; i < tokens.size(); ++i) {
    sum += std::log(1.0 + tokens[i - 1] + tokens[i]);
  }
  const auto result = Measure(tokens);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->scored, 49);
  EXPECT_NEAR(result->mean, sum / 49, 1e-5);
  EXPECT_GT(result->run, 49);
  EXPECT_GT(result->seconds, 0);
  EXPECT_EQ(progress_.front(), 15);
  EXPECT_EQ(progress_.back(), 49);
}

TEST_F(MeasurePerplexityTest, SaysWhatIsWrong) {
  const auto message = [&](const std::vector<TokenId>& tokens) {
    return std::string(Measure(tokens).status().message());
  };
  EXPECT_THAT(message({1}), HasSubstr("a text of 1 tokens"));
  EXPECT_THAT(message({1, 100}), HasSubstr("token 100; the model has 100"));
  EXPECT_THAT(message({1, -1}), HasSubstr("token -1"));
  options_.window = 65;
  EXPECT_THAT(message({1, 2}), HasSubstr("a window of 65"));
  options_.window = 16;
  options_.stride = 16;
  EXPECT_THAT(message({1, 2}), HasSubstr("a stride of 16"));
  options_.stride = 4;
  engine_.broken_ = true;
  EXPECT_THAT(message({1, 2}), HasSubstr("not finite"));
}

}  // namespace
}  // namespace baton::model_tools
