// Guesses at a sequence's next tokens, right ones and wrong ones, for the tests
// of all backends that take them: what comes out of steps that check them is,
// to the bit, what single steps give.
#pragma once

#include <cstdint>

#include "engine/engine.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::engine {

struct GuessedOutput {
  scheduling::SamplingParams sampling;
  // Of both sequences that run.
  int32_t prompt = 21;
  int32_t output = 24;
  int32_t adapter = scheduling::kNoAdapter;
  // Whether other tokens are allowed in each place of the output, as of a
  // grammar.
  bool masks = false;
  // Whether logits come back, which are then the same, too.
  bool want_logits = false;
};

// Has the engine say an output one token at a time, and once more with 1 to 16
// guesses in a step, alone and beside another sequence with some.
// An engine with draft weights runs the steps that guess before: how many of
// these sampled what they were to.
// REQUIRES: 256 tokens, and blocks for both sequences twice.
int32_t ExpectGuessesChangeNothing(Engine& engine, const GuessedOutput& how);

}  // namespace baton::engine
