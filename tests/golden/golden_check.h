// An engine's answers beside those of a golden model, for any backend.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/engine.h"
#include "tests/golden/golden_model.h"

namespace baton::engine {

// All of a prompt as one chunk.
inline constexpr int32_t kWholePrompt = 1 << 20;

// How far logits are from others.
struct Deviation {
  double sum_of_squares = 0;
  int64_t count = 0;

  // Returns the largest error. CHECK-fails on what is not finite.
  float Add(const std::vector<float>& actual,
            const std::vector<float>& expected);
  double Rms() const;
};

// Runs every prompt in chunks and compares all logits that come out: each with
// the golden model's largest error, and with chunks of one token, which give
// those of all positions, their root mean square, the property "rms_error" of
// the test.
void ExpectReferenceLogits(Engine& engine, const GoldenModel& golden,
                           int32_t chunk);

// Goes on behind every prompt, and compares the tokens, and the logits that
// chose the last one.
void ExpectReferenceTokens(Engine& engine, const GoldenModel& golden);

}  // namespace baton::engine
