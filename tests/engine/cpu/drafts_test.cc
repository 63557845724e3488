// Steps that check guesses at a sequence's next tokens.
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

}  // namespace
}  // namespace baton::engine::cpu
