// The simulated engine gives the right answer exactly when the KV that it reads
// is right.
#include "tests/sim/sim_engine.h"

#include <functional>
#include <vector>

#include <gtest/gtest.h>

#include "common/log.h"
#include "scheduling/sequence.h"

namespace baton::sim {
namespace {

using scheduling::RequestSpec;
using scheduling::Sequence;
using scheduling::StepPlan;

RequestSpec Spec() {
  RequestSpec spec;
  for (TokenId token = 0; token < 21; ++token) spec.prompt.push_back(token);
  spec.sampling.seed = 7;
  spec.stop.max_output_tokens = 9;
  return spec;
}

class SimEngineTest : public testing::Test {
 protected:
  // The output of `spec`, run with at most `chunk` tokens a step. `spoil` is
  // called when the prompt is computed.
  std::vector<TokenId> Run(
      const RequestSpec& spec, int32_t chunk,
      const std::function<void()>& spoil = [] {}) {
    Sequence sequence(SequenceId{1}, spec.prompt,
                      static_cast<int32_t>(spec.prompt.size()), spec.sampling,
                      spec.stop, spec.top_logprobs);
    sequence.blocks() = *pool_.Allocate(2);
    while (!sequence.finished().has_value()) {
      StepPlan plan;
      sequence.AppendTo(&plan, chunk);
      const int32_t count =
          static_cast<int32_t>(plan.sequences[0].tokens.size());
      const auto result = engine_.Execute(plan, [](int32_t) {});
      sequence.CommitComputed(count);
      for (const auto& token : result.sampled) {
        EXPECT_EQ(token.top,
                  ReferenceTop(spec.sampling.seed, sequence.num_output(),
                               token.token, spec.top_logprobs));
        sequence.CommitSampled(token.token);
        if (sequence.num_output() == 1) spoil();
      }
    }
    return {sequence.tokens().begin() + sequence.prompt_length(),
            sequence.tokens().end()};
  }

  SimEngine engine_{4, {.on_plan = [](const StepPlan&) {}, .interlude = [] {}}};
  scheduling::BlockPool pool_{4};
};

TEST_F(SimEngineTest, GivesTheReferenceHoweverThePromptIsCut) {
  const std::vector<TokenId> expected = ReferenceOutput(Spec());
  ASSERT_EQ(expected.size(), 9u);
  for (int32_t chunk : {1, 5, 16, 100}) {
    EXPECT_EQ(Run(Spec(), chunk), expected) << "chunks of " << chunk;
  }
}

TEST_F(SimEngineTest, ScoresThePromptHoweverItIsCut) {
  RequestSpec spec = Spec();
  EXPECT_TRUE(ReferencePromptLogprobs(spec).empty());
  spec.prompt_logprobs = 2;
  const auto expected = ReferencePromptLogprobs(spec);
  ASSERT_EQ(expected.size(), 20u);
  for (int32_t chunk : {1, 5, 16, 100}) {
    Sequence sequence(SequenceId{1}, spec.prompt, 21, spec.sampling, spec.stop);
    sequence.WantPromptLogprobs(/*first=*/1, /*top=*/2);
    sequence.blocks() = *pool_.Allocate(2);
    size_t next = 0;
    while (sequence.uncomputed() > 0) {
      StepPlan plan;
      sequence.AppendTo(&plan, chunk);
      const auto result = engine_.Execute(plan, [](int32_t) {});
      for (size_t i = 0; i < plan.sequences[0].targets.size(); ++i, ++next) {
        std::vector<scheduling::TokenLogprob> all = {
            {plan.sequences[0].targets[i], result.target_logprobs[0][i]}};
        for (const auto& t : result.target_top[0][i]) all.push_back(t);
        EXPECT_EQ(all, expected[next]) << next;
      }
      sequence.CommitComputed(
          static_cast<int32_t>(plan.sequences[0].tokens.size()));
      sequence.CommitPromptLogprobs(plan.sequences[0]);
    }
    EXPECT_EQ(next, 20u) << chunk;
  }
}

TEST_F(SimEngineTest, AStopTokenDoesNotComeBeforeItMay) {
  RequestSpec spec = Spec();
  spec.top_logprobs = 3;
  const std::vector<TokenId> free = ReferenceOutput(spec);
  spec.stop.stop_token_ids = {free[1], free[2]};
  EXPECT_EQ(ReferenceOutput(spec),
            std::vector<TokenId>(free.begin(), free.begin() + 2));
  spec.stop.min_output_tokens = 2;
  const std::vector<TokenId> forced = ReferenceOutput(spec);
  EXPECT_EQ(forced[0], free[0]);
  EXPECT_NE(forced[1], free[1]);
  EXPECT_NE(forced[1], free[2]);
  for (int32_t chunk : {1, 100}) EXPECT_EQ(Run(spec, chunk), forced);
}

TEST_F(SimEngineTest, OneWrongByteAnywhereChangesTheAnswer) {
  const std::vector<TokenId> expected = ReferenceOutput(Spec());
  const engine::KvLayout& layout = engine_.kv_layout();
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    // The first and the last byte of the prompt's 21 slots.
    for (const int64_t at : {0, 20 * 64 + 63}) {
      const auto spoil = [&] {
        const auto block = static_cast<BlockId>(at / layout.page_bytes());
        // In every block: which ones the sequence has is the pool's affair.
        for (BlockId b = 0; b < layout.num_blocks; ++b) {
          engine_.kv_memory()[static_cast<size_t>(
              layout.PageOffset(layer, b) + at -
              block * layout.page_bytes())] ^= std::byte{1};
        }
      };
      EXPECT_NE(Run(Spec(), 100, spoil), expected);
    }
  }
}

}  // namespace
}  // namespace baton::sim
