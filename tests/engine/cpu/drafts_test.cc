// Guesses at a sequence's next tokens, right ones and wrong ones: what comes
// out of a step that checks them is, to the bit, what single steps give.
#include <algorithm>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine.h"
#include "tests/engine/cpu/engine_fixture.h"

namespace baton::engine::cpu {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::StepPlan;
using scheduling::StepResult;

class DraftsTest : public EngineFixture {
 protected:
  static constexpr int32_t kPrompt = 21;
  static constexpr int32_t kOutput = 24;

  // The part of a sequence that has said `said`, of which all but the last
  // token are computed, with these guesses; `run` is what it refers to.
  PlannedSequence Guessing(uint64_t id, const std::vector<TokenId>& said,
                           const std::vector<TokenId>& drafts,
                           const std::vector<BlockId>& blocks,
                           std::vector<TokenId>* run) const {
    const auto size = static_cast<int32_t>(said.size());
    PlannedSequence part = Part(id, said, size - 1, size, blocks);
    run->assign(1, said.back());
    run->insert(run->end(), drafts.begin(), drafts.end());
    part.tokens = *run;
    part.num_drafts = static_cast<int32_t>(drafts.size());
    part.prompt_length = kPrompt;
    part.sampling = &sampling_;
    part.top_logprobs = 3;
    return part;
  }
  // kOutput tokens, one at a time, and the first prompt.
  std::vector<SampledToken> Alone(Engine& engine, std::vector<TokenId>* said,
                                  const std::vector<BlockId>& blocks) const {
    std::vector<SampledToken> out;
    for (int32_t i = 0; i < kOutput; ++i) {
      StepPlan plan;
      std::vector<TokenId> run;
      const auto size = static_cast<int32_t>(said->size());
      if (i == 0) {
        plan.sequences = {Part(1, *said, 0, size, blocks)};
        plan.sequences[0].prompt_length = kPrompt;
        plan.sequences[0].sampling = &sampling_;
        plan.sequences[0].top_logprobs = 3;
      } else {
        plan.sequences = {Guessing(1, *said, {}, blocks, &run)};
      }
      out.push_back(engine.Execute(plan, NoHook).sampled.at(0));
      said->push_back(out.back().token);
    }
    return out;
  }
  static void ExpectSame(const SampledToken& a, const SampledToken& b) {
    EXPECT_TRUE(a.ok && b.ok);
    EXPECT_EQ(a.token, b.token);
    EXPECT_EQ(a.logprob, b.logprob);
    EXPECT_EQ(a.top, b.top);
    EXPECT_TRUE(SameBits(a.logits, b.logits));
  }

  scheduling::SamplingParams sampling_;
};

INSTANTIATE_TEST_SUITE_P(Models, DraftsTest, EngineCases(), EngineCaseName);

TEST_P(DraftsTest, StepsThatCheckGuessesGiveWhatSingleStepsGive) {
  const auto engine = Make();
  const int32_t vocab = engine->model().vocab_size;
  ASSERT_GE(engine->max_drafts(), 8);
  for (const float temperature : {0.0f, 0.9f}) {
    sampling_ = {.temperature = temperature, .seed = 5};
    const std::vector<TokenId> prompt = Prompt(kPrompt, 31);
    std::vector<TokenId> all = prompt;
    const std::vector<SampledToken> expected =
        Alone(*engine, &all, BlockRange(0, 5));

    // The same with guesses, of which the first `right` of each step's are what
    // comes, and the next is not; beside another sequence with some.
    const std::vector<BlockId> blocks = BlockRange(10, 5);
    const std::vector<BlockId> others = BlockRange(20, 5);
    const std::vector<TokenId> other = Prompt(kPrompt, 32);
    StepPlan first;
    first.sequences = {Part(1, prompt, 0, kPrompt - 1, blocks),
                       Part(2, other, 0, kPrompt - 1, others)};
    engine->Execute(first, NoHook);
    std::vector<TokenId> said = prompt;
    for (int32_t step = 0; said.size() < all.size(); ++step) {
      const auto at = static_cast<int32_t>(said.size()) - kPrompt;
      const int32_t count = std::min(8, kOutput - at - 1);
      const int32_t right = std::min(step % 6, count);
      std::vector<TokenId> drafts;
      for (int32_t i = 0; i < count; ++i) {
        const TokenId next = expected[at + i].token;
        drafts.push_back(i < right ? next : (next + 1 + i) % vocab);
      }
      StepPlan plan;
      std::vector<TokenId> run, run_beside;
      plan.sequences = {Guessing(2, other, {9, 8, 7}, others, &run_beside),
                        Guessing(1, said, drafts, blocks, &run)};
      if (step % 2 == 0) std::swap(plan.sequences[0], plan.sequences[1]);
      const StepResult result = engine->Execute(plan, NoHook);
      ASSERT_EQ(result.sampled.size(), static_cast<size_t>(4 + 1 + count));
      const size_t own = step % 2 == 0 ? 0 : 4;
      for (int32_t i = 0; i <= right; ++i) {
        const SampledToken& token = result.sampled[own + i];
        EXPECT_EQ(token.sequence, SequenceId{1});
        ExpectSame(token, expected[at + i]);
        said.push_back(token.token);
      }
    }
    EXPECT_EQ(said, all);
  }
}

}  // namespace
}  // namespace baton::engine::cpu
