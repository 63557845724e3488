#include "tests/engine/guessed_output.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/types/span.h"
#include "common/log.h"

namespace baton::engine {
namespace {

using scheduling::PlannedSequence;
using scheduling::SampledToken;
using scheduling::StepPlan;
using scheduling::StepResult;
using ::testing::ElementsAreArray;

// A sequence of a test, and what its part of a plan refers to.
struct Speaker {
  SequenceId id{};
  std::vector<TokenId> said;
  std::vector<BlockId> blocks;
  std::vector<TokenId> run;
  std::vector<scheduling::TokenMask> masks;  // of each place of the output
  std::vector<const scheduling::TokenMask*> after_drafts;
};

Speaker Begin(const Engine& engine, const GuessedOutput& how, uint64_t id,
              BlockId* next_block) {
  Speaker speaker;
  speaker.id = SequenceId{id};
  for (int32_t i = 0; i < how.prompt; ++i) {
    speaker.said.push_back(
        static_cast<TokenId>((id * 7919 + i * 104729) % 256));
  }
  speaker.blocks.resize(engine.kv_layout().BlocksFor(how.prompt + how.output));
  std::iota(speaker.blocks.begin(), speaker.blocks.end(), *next_block);
  *next_block += static_cast<BlockId>(speaker.blocks.size());
  // Behind the last one a sample may mean nothing.
  for (int32_t i = 0; how.masks && i < how.output + kMaxDrafts; ++i) {
    std::vector<TokenId> allowed;
    for (TokenId token = i % 5; token < 256; token += 5) {
      allowed.push_back(token);
    }
    speaker.masks.emplace_back(engine.model().vocab_size, allowed);
  }
  return speaker;
}

// The tokens from `first` on, and guesses.
PlannedSequence Part(Speaker& speaker, const GuessedOutput& how, int32_t first,
                     absl::Span<const TokenId> drafts) {
  PlannedSequence part;
  part.sequence = speaker.id;
  speaker.run.assign(speaker.said.begin() + first, speaker.said.end());
  speaker.run.insert(speaker.run.end(), drafts.begin(), drafts.end());
  part.tokens = speaker.run;
  part.first_position = first;
  part.blocks = speaker.blocks;
  part.adapter = how.adapter;
  part.sample = true;
  part.num_drafts = static_cast<int32_t>(drafts.size());
  part.sampling = &how.sampling;
  part.history = speaker.said;
  part.prompt_length = how.prompt;
  part.allowed = how.sampling.allowed.get();
  if (how.masks) {
    const auto place = static_cast<int32_t>(speaker.said.size()) - how.prompt;
    part.allowed = &speaker.masks[place];
    speaker.after_drafts.clear();
    for (int32_t i = 0; i < part.num_drafts; ++i) {
      speaker.after_drafts.push_back(&speaker.masks[place + 1 + i]);
    }
    part.allowed_after_drafts = speaker.after_drafts;
  }
  part.top_logprobs = 3;
  part.want_logits = how.want_logits;
  return part;
}

// Behind all that it said but the last token.
PlannedSequence NextPart(Speaker& speaker, const GuessedOutput& how,
                         absl::Span<const TokenId> drafts) {
  return Part(speaker, how, static_cast<int32_t>(speaker.said.size()) - 1,
              drafts);
}

StepResult Execute(Engine& engine, const StepPlan& plan) {
  return engine.Execute(plan, [](int32_t) {});
}

// The steps that guess, as if they had sampled these `drafts`: what they write
// is to be gone. How many of the tokens that they did sample are among them.
int32_t Guess(Engine& engine, Speaker& speaker, GuessedOutput how,
              absl::Span<const TokenId> drafts) {
  how.masks = false;
  how.want_logits = false;
  const std::vector<TokenId> said = speaker.said;
  int32_t right = 0;
  for (const TokenId next : drafts) {
    StepPlan plan;
    plan.draft = true;
    plan.sequences = {NextPart(speaker, how, {})};
    const StepResult result = Execute(engine, plan);
    EXPECT_EQ(result.sampled.size(), 1u);
    EXPECT_TRUE(result.sampled[0].ok);
    right += result.sampled[0].token == next ? 1 : 0;
    speaker.said.push_back(next);
  }
  speaker.said = said;
  return right;
}

void ExpectSame(const SampledToken& a, const SampledToken& b) {
  EXPECT_TRUE(a.ok && b.ok);
  EXPECT_FALSE(a.again || b.again);
  EXPECT_EQ(a.token, b.token);
  EXPECT_EQ(a.logprob, b.logprob);
  EXPECT_EQ(a.top, b.top);
  EXPECT_THAT(a.logits, ElementsAreArray(b.logits));
}

}  // namespace

int32_t ExpectGuessesChangeNothing(Engine& engine, const GuessedOutput& how) {
  int32_t guessed = 0;
  constexpr int32_t kCounts[] = {8, 3, 16, 1, 7, 2};
  const int32_t vocab = engine.model().vocab_size;
  CHECK_GE(engine.max_drafts(), 16);
  BlockId next_block = 0;
  Speaker alone = Begin(engine, how, 31, &next_block);
  std::vector<SampledToken> expected;
  for (int32_t i = 0; i < how.output; ++i) {
    StepPlan plan;
    plan.sequences = {i == 0 ? Part(alone, how, 0, {})
                             : NextPart(alone, how, {})};
    const StepResult result = Execute(engine, plan);
    CHECK_EQ(result.sampled.size(), 1u);
    expected.push_back(result.sampled[0]);
    alone.said.push_back(expected.back().token);
  }

  // Of each step's guesses the first `right` are what comes, and the next is
  // not.
  Speaker speaker = Begin(engine, how, 31, &next_block);
  Speaker other = Begin(engine, how, 32, &next_block);
  StepPlan first;
  first.sequences = {Part(speaker, how, 0, {}), Part(other, how, 0, {})};
  const StepResult both = Execute(engine, first);
  CHECK_EQ(both.sampled.size(), 2u);
  ExpectSame(both.sampled[0], expected[0]);
  speaker.said.push_back(expected[0].token);
  other.said.push_back(both.sampled[1].token);
  for (int32_t step = 0; speaker.said.size() < alone.said.size(); ++step) {
    SCOPED_TRACE(step);
    const auto at = static_cast<int32_t>(speaker.said.size()) - how.prompt;
    const int32_t count = std::min(kCounts[step % 6], how.output - at - 1);
    const int32_t right = std::min(step % 5, count);
    std::vector<TokenId> drafts;
    for (int32_t i = 0; i < count; ++i) {
      const TokenId next = expected[at + i].token;
      drafts.push_back(i < right ? next : (next + 1 + i) % vocab);
    }
    if (engine.has_draft_weights()) {
      guessed += Guess(engine, speaker, how, drafts);
    }
    StepPlan plan;
    plan.sequences = {NextPart(speaker, how, drafts)};
    size_t own = 0;
    size_t all = 1 + count;
    if (step % 3 != 1) {
      // That one stays where it is.
      plan.sequences.push_back(NextPart(other, how, {9, 8, 7}));
      all += 4;
      if (step % 2 == 0) {
        std::swap(plan.sequences[0], plan.sequences[1]);
        own = 4;
      }
    }
    const StepResult result = Execute(engine, plan);
    CHECK_EQ(result.sampled.size(), all);
    for (int32_t i = 0; i <= right; ++i) {
      const SampledToken& token = result.sampled[own + i];
      EXPECT_EQ(token.sequence, speaker.id);
      ExpectSame(token, expected[at + i]);
      speaker.said.push_back(token.token);
    }
  }
  EXPECT_EQ(speaker.said, alone.said);
  return guessed;
}

}  // namespace baton::engine
