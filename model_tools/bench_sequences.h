// Sequences of random tokens on an engine, run step by step: what a worker's
// loop does, without a cluster. Not thread-safe; the engine outlives it.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/engine.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::model_tools {

class BenchSequences final {
 public:
  // Sequences 0 .. count-1, with room for `positions` positions each.
  // With the engine's adapters, if it has some, in turns.
  // REQUIRES: the engine's KV memory has room for them.
  BenchSequences(engine::Engine* engine, int32_t count, int64_t positions);

  // Puts every sequence back to its first `position` tokens, which must have
  // been run.
  void Rewind(int64_t position);

  // Runs random tokens of sequence 0 up to `position`, at most `chunk` of them
  // per step, the first step from where it is. The token after the last is
  // sampled and shifted, as below.
  void Prefill(int64_t position, int32_t chunk);

  // Gives every sequence what sequence 0 has: tokens, and a copy of its KV.
  void CopyFirstToAll();

  // Samples one token of every sequence, in one step, and adds RandomToken to
  // each, modulo the vocabulary: what sequences that say the same, or repeat
  // themselves, cost says nothing of a mixture of experts. The first step at
  // position 0 begins with a random token.
  void DecodeStep();

  // The same for each call.
  TokenId RandomToken(int32_t sequence, int64_t index) const;

  // Tokens of each sequence.
  absl::Span<const TokenId> tokens(int32_t sequence) const {
    return sequences_[sequence].tokens;
  }

 private:
  struct Sequence {
    // Those that were run, and the one that comes next.
    std::vector<TokenId> tokens;
    std::vector<BlockId> blocks;
  };

  scheduling::PlannedSequence Plan(int32_t sequence, int64_t first,
                                   bool sample) const;
  void Execute(const scheduling::StepPlan& plan);

  engine::Engine* const engine_;
  scheduling::SamplingParams greedy_;
  std::vector<Sequence> sequences_;
  // Tokens of each sequence whose KV is there.
  int64_t done_ = 0;
};

}  // namespace baton::model_tools
