// Drives an engine by hand for tests: sequences with their tokens and blocks,
// and steps over any mix of them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "common/ids.h"
#include "engine/engine.h"

namespace baton::engine {

// One sequence: its tokens so far and the blocks they live in. All sampling is
// greedy, and the logits of every step's last token are kept.
struct DrivenSequence {
  SequenceId id{};
  std::vector<TokenId> tokens;
  int32_t prompt_length = 0;
  int32_t computed = 0;
  std::vector<BlockId> blocks;
  // PlannedSequence::adapter.
  int32_t adapter = scheduling::kNoAdapter;
  // Position -> the logits after it.
  std::map<int32_t, std::vector<float>> logits;
};

class EngineDriver final {
 public:
  // Fills KV memory with NaN: what an earlier sequence left in a block must not
  // matter.
  explicit EngineDriver(Engine& engine);

  // A sequence with blocks for its prompt and `max_output` tokens, taken from
  // the pool in an order that is neither rising nor without gaps. With the
  // engine's first adapter, if it has one.
  DrivenSequence NewSequence(const std::vector<TokenId>& prompt,
                             int32_t max_output);

  // One part of a step: the next `num_tokens` tokens of a sequence.
  struct Part {
    DrivenSequence* sequence;
    int32_t num_tokens;
  };
  // Runs one step. A sequence that has computed all its tokens gets the sampled
  // one appended when `append` is set.
  void Step(const std::vector<Part>& parts, bool append);

  // Runs a whole prompt in chunks of `chunk` tokens; appends nothing.
  void RunPrompt(DrivenSequence& sequence, int32_t chunk);

 private:
  Engine& engine_;
  std::vector<BlockId> free_blocks_;
  uint64_t next_id_ = 1;
};

}  // namespace baton::engine
