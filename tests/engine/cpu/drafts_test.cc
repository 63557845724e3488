// Steps that check guesses at a sequence's next tokens.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/cpu/engine_fixture.h"
#include "tests/engine/guessed_output.h"

namespace baton::engine::cpu {
namespace {

class DraftsTest : public EngineFixture {};

INSTANTIATE_TEST_SUITE_P(Models, DraftsTest, EngineCases(), EngineCaseName);

TEST_P(DraftsTest, StepsThatCheckGuessesGiveWhatSingleStepsGive) {
  const auto engine = Make();
  for (const float temperature : {0.0f, 0.9f}) {
    ExpectGuessesChangeNothing(
        *engine, {.sampling = {.temperature = temperature, .seed = 5},
                  .masks = temperature > 0,
                  .want_logits = true});
  }
}

// What the model guesses with weights of fewer bits changes nothing either, of
// what those write to KV, and is mostly right.
TEST_P(DraftsTest, StepsThatGuessLeaveNothing) {
  for (const std::string& drafts : std::vector<std::string>{"int8", "int4"}) {
    Dtypes with = dtypes();
    // No fewer.
    if (with.weights == std::string("int4") || with.weights == drafts) continue;
    with.drafts = drafts.c_str();
    const auto engine = MakeEngine(dir(), isa(), with);
    ASSERT_TRUE(engine->has_draft_weights());
    EXPECT_EQ(engine->model_identity(), Make()->model_identity());
    EXPECT_EQ(engine->backend_name(), Make()->backend_name());
    const int32_t right = ExpectGuessesChangeNothing(
        *engine, {.sampling = {.temperature = 0.0f}, .want_logits = true});
    EXPECT_GE(right, 4) << drafts;
  }
}

}  // namespace
}  // namespace baton::engine::cpu
