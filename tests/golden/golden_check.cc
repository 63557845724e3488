#include "tests/golden/golden_check.h"

#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "tests/golden/engine_driver.h"

namespace baton::engine {

float Deviation::Add(const std::vector<float>& actual,
                     const std::vector<float>& expected) {
  CHECK_EQ(actual.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    CHECK(std::isfinite(actual[i]));
    const float error = std::abs(actual[i] - expected[i]);
    worst = std::max(worst, error);
    sum_of_squares += double{error} * error;
    ++count;
  }
  return worst;
}

double Deviation::Rms() const {
  return std::sqrt(sum_of_squares / static_cast<double>(count));
}

void ExpectReferenceLogits(Engine& engine, const GoldenModel& golden,
                           int32_t chunk) {
  EngineDriver driver(engine);
  Deviation deviation;
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    const GoldenPrompt& prompt = golden.prompts[i];
    DrivenSequence sequence = driver.NewSequence(prompt.tokens, 0);
    driver.RunPrompt(sequence, chunk);
    for (const auto& [position, logits] : sequence.logits) {
      EXPECT_LE(deviation.Add(logits, prompt.logits[position]),
                golden.max_error)
          << absl::StrCat("prompt ", i, " chunk ", chunk, " position ",
                          position);
    }
  }
  // Of few positions the mean says little.
  if (chunk == 1) {
    testing::Test::RecordProperty("rms_error", absl::StrCat(deviation.Rms()));
    EXPECT_LE(deviation.Rms(), golden.rms_error);
  }
}

void ExpectReferenceTokens(Engine& engine, const GoldenModel& golden) {
  EngineDriver driver(engine);
  for (size_t i = 0; i < golden.prompts.size(); ++i) {
    SCOPED_TRACE(absl::StrCat("prompt ", i));
    const GoldenPrompt& prompt = golden.prompts[i];
    // The data promise that no step is nearly tied.
    EXPECT_THAT(prompt.gaps, testing::Each(testing::Gt(2 * golden.max_error)));
    const auto outputs = static_cast<int32_t>(prompt.greedy.size());
    DrivenSequence sequence = driver.NewSequence(prompt.tokens, outputs);
    driver.Step({{&sequence, sequence.prompt_length}}, /*append=*/true);
    while (sequence.tokens.size() < prompt.tokens.size() + outputs) {
      driver.Step({{&sequence, 1}}, /*append=*/true);
    }
    const std::vector<TokenId> output(
        sequence.tokens.begin() + sequence.prompt_length,
        sequence.tokens.end());
    EXPECT_EQ(output, prompt.greedy);
    Deviation deviation;
    EXPECT_LE(deviation.Add(sequence.logits.rbegin()->second,
                            prompt.last_greedy_logits),
              golden.max_error)
        << "last output token";
  }
}

}  // namespace baton::engine
