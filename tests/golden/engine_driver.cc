#include "tests/golden/engine_driver.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "common/log.h"
#include "scheduling/request.h"
#include "scheduling/step_plan.h"

namespace baton::engine {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::SamplingParams;
using scheduling::StepPlan;
using scheduling::StepResult;

EngineDriver::EngineDriver(Engine& engine) : engine_(engine) {
  const absl::Span<std::byte> memory = engine_.kv_memory();
  std::fill(memory.begin(), memory.end(), std::byte{0xff});
  // Every third block, from the end of the pool, then those in between.
  const int32_t num_blocks = engine_.kv_layout().num_blocks;
  for (int32_t start : {0, 1, 2}) {
    for (int32_t block = num_blocks - 1 - start; block >= 0; block -= 3) {
      free_blocks_.push_back(block);
    }
  }
  std::reverse(free_blocks_.begin(), free_blocks_.end());
}

DrivenSequence EngineDriver::NewSequence(const std::vector<TokenId>& prompt,
                                         int32_t max_output) {
  DrivenSequence sequence;
  sequence.id = static_cast<SequenceId>(next_id_++);
  sequence.tokens = prompt;
  sequence.prompt_length = static_cast<int32_t>(prompt.size());
  if (!engine_.adapters().empty()) sequence.adapter = 0;
  const int32_t blocks =
      engine_.kv_layout().BlocksFor(sequence.prompt_length + max_output);
  CHECK_LE(blocks, static_cast<int32_t>(free_blocks_.size()));
  for (int32_t i = 0; i < blocks; ++i) {
    sequence.blocks.push_back(free_blocks_.back());
    free_blocks_.pop_back();
  }
  return sequence;
}

void EngineDriver::Step(const std::vector<Part>& parts, bool append) {
  SamplingParams greedy;
  greedy.temperature = 0.0f;
  StepPlan plan;
  for (const Part& part : parts) {
    const DrivenSequence& s = *part.sequence;
    CHECK_LE(static_cast<size_t>(s.computed + part.num_tokens),
             s.tokens.size());
    const absl::Span<const TokenId> tokens(s.tokens);
    PlannedSequence planned;
    planned.sequence = s.id;
    planned.tokens = tokens.subspan(s.computed, part.num_tokens);
    planned.first_position = s.computed;
    planned.blocks = s.blocks;
    planned.adapter = s.adapter;
    planned.sample = true;
    planned.sampling = &greedy;
    planned.history = tokens.first(s.computed + part.num_tokens);
    // Within a prompt nobody samples; there the history counts as the prompt.
    planned.prompt_length =
        std::min(s.prompt_length, s.computed + part.num_tokens);
    planned.want_logits = true;
    plan.sequences.push_back(planned);
  }
  int32_t layers_done = 0;
  StepResult result = engine_.Execute(plan, [&](int32_t layer) {
    CHECK_EQ(layer, layers_done);
    ++layers_done;
  });
  CHECK_EQ(layers_done, engine_.model().num_layers);
  CHECK_EQ(result.sampled.size(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    DrivenSequence& s = *parts[i].sequence;
    SampledToken& sampled = result.sampled[i];
    CHECK(sampled.sequence == s.id);
    CHECK(sampled.ok) << "logits are not finite";
    CHECK_EQ(sampled.logits.size(),
             static_cast<size_t>(engine_.model().vocab_size));
    s.computed += parts[i].num_tokens;
    s.logits[s.computed - 1] = std::move(sampled.logits);
    if (append && static_cast<size_t>(s.computed) == s.tokens.size()) {
      s.tokens.push_back(sampled.token);
    }
  }
}

void EngineDriver::RunPrompt(DrivenSequence& sequence, int32_t chunk) {
  while (sequence.computed < sequence.prompt_length) {
    const int32_t count =
        std::min(chunk, sequence.prompt_length - sequence.computed);
    Step({{&sequence, count}}, /*append=*/false);
  }
}

}  // namespace baton::engine
