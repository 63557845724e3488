#include "scheduling/output_guide.h"

#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduling/sequence.h"

namespace baton::scheduling {
namespace {

using Expression = GrammarBuilder::Expression;
using testing::ElementsAre;

constexpr int32_t kVocab = 40;
constexpr TokenId kEnd = 1;  // without text

std::shared_ptr<const Vocabulary> Words() {
  //  0   1   2    3    4    5     6     7    8     9    10   11
  return std::make_shared<const Vocabulary>(std::vector<std::string>{
      "", "", "a", "b", "c", "ab", "abc", "a", "bc", "!", "a!", "cab"});
}

std::shared_ptr<OutputGuide> Guide(
    const std::function<Expression(GrammarBuilder&)>& write,
    std::shared_ptr<const Vocabulary> vocabulary = Words()) {
  GrammarBuilder builder;
  const auto whole = builder.NewRule();
  builder.Define(whole, write(builder));
  Grammar grammar;
  EXPECT_TRUE(builder.Build(&grammar).ok());
  auto guide = OutputGuide::Make(grammar, std::move(vocabulary), kVocab);
  EXPECT_TRUE(guide.ok()) << guide.status();
  return *std::move(guide);
}

Expression AbcOnce(GrammarBuilder& b) { return b.Literal("abc"); }
// (abc)+
Expression AbcMany(GrammarBuilder& b) {
  return b.Repeat(b.Literal("abc"), 1, kAnyNumber);
}

std::vector<TokenId> Allowed(const GuidedOutput& output) {
  return output.allowed()->Tokens();
}

TEST(VocabularyTest, TokensThatBeginAlikeShareNodes) {
  const std::shared_ptr<const Vocabulary> words = Words();
  std::string path;
  std::vector<std::string> seen;
  for (size_t i = 0; i + 1 < words->nodes().size(); ++i) {
    const Vocabulary::Node& node = words->nodes()[i];
    path.resize(node.depth);
    path += static_cast<char>(node.byte);
    EXPECT_GT(node.end, i);
    for (uint32_t t = node.first_token; t < words->nodes()[i + 1].first_token;
         ++t) {
      EXPECT_EQ(words->text(words->tokens()[t]), path);
      seen.push_back(path);
    }
    // Those below it are behind it, up to its end.
    for (size_t j = i + 1; j + 1 < words->nodes().size(); ++j) {
      if (words->nodes()[j].depth <= node.depth) {
        EXPECT_EQ(node.end, j);
        break;
      }
    }
  }
  EXPECT_THAT(seen, ElementsAre("!", "a", "a", "a!", "ab", "abc", "b", "bc",
                                "c", "cab"));
}

TEST(VocabularyTest, FindsTheLongestToken) {
  const std::shared_ptr<const Vocabulary> words = Words();
  EXPECT_EQ(words->Longest("abcab"), 6);
  EXPECT_EQ(words->Longest("abb"), 5);
  EXPECT_EQ(words->Longest("a"), 2);  // of two
  EXPECT_EQ(words->Longest("caca"), 4);
  EXPECT_EQ(words->Longest("!a"), 9);
  EXPECT_EQ(words->Longest("x"), std::nullopt);
  EXPECT_EQ(words->Longest(""), std::nullopt);
}

TEST(GuidedOutputTest, AllowsWhatTheGrammarGoesOnWith) {
  GuidedOutput output(Guide(AbcOnce));
  ASSERT_EQ(*output.Follow({}, {kEnd}, true, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(2, 5, 6, 7));  // a ab abc a
  const std::vector<TokenId> so_far = {7};
  ASSERT_EQ(*output.Follow(so_far, {kEnd}, true, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(3, 8));  // b bc
  const std::vector<TokenId> all = {7, 8};
  // Nothing may follow: whether there is a token that says so or not.
  EXPECT_EQ(*output.Follow(all, {kEnd}, true, nullptr),
            GuidedOutput::Next::kComplete);
}

TEST(GuidedOutputTest, MayStopWhereTheAnswerMayBeOver) {
  GuidedOutput output(Guide(AbcMany));
  const std::vector<TokenId> once = {6};
  ASSERT_EQ(*output.Follow(once, {kEnd}, true, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(kEnd, 2, 5, 6, 7));
  const std::vector<TokenId> and_a_half = {6, 5};
  ASSERT_EQ(*output.Follow(and_a_half, {kEnd}, true, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(4, 11));  // c cab
  // Without one, it goes on for ever.
  GuidedOutput endless(Guide(AbcMany));
  ASSERT_EQ(*endless.Follow(once, {}, true, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(endless), ElementsAre(2, 5, 6, 7));
}

TEST(GuidedOutputTest, DoesNotStopBeforeItMay) {
  GuidedOutput output(Guide(AbcMany));
  const std::vector<TokenId> once = {6};
  ASSERT_EQ(*output.Follow(once, {kEnd, 6}, false, nullptr),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(2, 5, 7));
  // Nothing else is left: the answer is over all the same.
  GuidedOutput short_one(Guide(AbcOnce));
  EXPECT_EQ(*short_one.Follow(once, {kEnd}, false, nullptr),
            GuidedOutput::Next::kComplete);
}

TEST(GuidedOutputTest, HeedsTheTokensThatAreAllowedBesides) {
  GuidedOutput output(Guide(AbcMany));
  const TokenMask among(kVocab, {2, 3, 4, 9});
  ASSERT_EQ(*output.Follow({}, {kEnd}, true, &among),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(2));
  const std::vector<TokenId> once = {2, 3, 4};
  ASSERT_EQ(*output.Follow(once, {kEnd}, true, &among),
            GuidedOutput::Next::kGoesOn);
  EXPECT_THAT(Allowed(output), ElementsAre(2));  // kEnd is not among them
  const TokenMask useless(kVocab, {9});
  GuidedOutput stuck(Guide(AbcOnce));
  EXPECT_EQ(stuck.Follow({}, {kEnd}, true, &useless).status().message(),
            "no token that may come out is one that the grammar allows next");
}

// Tokens as they are.
std::vector<std::vector<TokenId>> Tokens(
    const std::vector<std::shared_ptr<const TokenMask>>& masks) {
  std::vector<std::vector<TokenId>> tokens;
  for (const auto& mask : masks) tokens.push_back(mask->Tokens());
  return tokens;
}

TEST(GuidedOutputTest, LooksAheadAsFarAsIsKnown) {
  const std::shared_ptr<OutputGuide> guide = Guide(AbcMany);
  GuidedOutput output(guide);
  ASSERT_TRUE(output.Follow({}, {kEnd}, true, nullptr).ok());
  const std::vector<TokenId> more = {2, 8, 6, 5};  // a bc abc ab
  EXPECT_EQ(Tokens(output.LookAhead(more, {kEnd}, nullptr)).size(), 0u);
  // Another sequence has found what follows.
  GuidedOutput other(guide);
  std::vector<std::vector<TokenId>> expected;
  for (size_t i = 1; i <= more.size(); ++i) {
    ASSERT_TRUE(
        other.Follow(absl::MakeConstSpan(more).first(i), {kEnd}, true, nullptr)
            .ok());
    expected.push_back(Allowed(other));
  }
  EXPECT_EQ(Tokens(output.LookAhead(more, {kEnd}, nullptr)), expected);
  EXPECT_THAT(Allowed(output), ElementsAre(2, 5, 6, 7));  // as before
  // Up to what may not come, has no text, or is the end.
  EXPECT_EQ(
      Tokens(output.LookAhead(std::vector<TokenId>{2, 8, 9}, {kEnd}, nullptr)),
      (std::vector<std::vector<TokenId>>{expected[0], expected[1]}));
  for (const TokenId token : {kEnd, 30, 3}) {
    EXPECT_EQ(output.LookAhead(std::vector<TokenId>{6, token}, {kEnd}, nullptr)
                  .size(),
              1u)
        << token;
  }
  EXPECT_EQ(output.LookAhead(std::vector<TokenId>{6, 6}, {6}, nullptr).size(),
            0u);
  // Of some tokens alone.
  const TokenMask among(kVocab, {2, 3, 4, 8});
  EXPECT_EQ(Tokens(output.LookAhead(more, {kEnd}, &among)),
            (std::vector<std::vector<TokenId>>{{3, 8}, {2}}));
}

// What is not known any more is not guessed at.
TEST(GuidedOutputTest, LooksAheadOfNothingThatIsForgotten) {
  const std::shared_ptr<OutputGuide> guide = Guide(AbcMany);
  GuidedOutput output(guide);
  const std::vector<TokenId> more = {2, 8};
  for (const size_t said : {1, 2}) {
    ASSERT_TRUE(output
                    .Follow(absl::MakeConstSpan(more).first(said), {kEnd}, true,
                            nullptr)
                    .ok());
  }
  GuidedOutput other(guide);
  ASSERT_TRUE(other.Follow({}, {kEnd}, true, nullptr).ok());
  EXPECT_EQ(other.LookAhead(more, {kEnd}, nullptr).size(), 2u);
  guide->Forget();
  EXPECT_EQ(other.LookAhead(more, {kEnd}, nullptr).size(), 0u);
  EXPECT_THAT(other.Forced(4), ElementsAre());
}

// Nothing may follow the last one: it is not looked at.
TEST(GuidedOutputTest, LooksNotBehindTheEnd) {
  const std::shared_ptr<OutputGuide> guide = Guide(AbcOnce);
  for (int i = 0; i < 2; ++i) {
    GuidedOutput output(guide);
    ASSERT_TRUE(output.Follow({}, {kEnd}, true, nullptr).ok());
    EXPECT_EQ(
        output.LookAhead(std::vector<TokenId>{2, 8}, {kEnd}, nullptr).size(),
        i == 0 ? 0u : 1u);
    ASSERT_TRUE(
        output.Follow(std::vector<TokenId>{2}, {kEnd}, true, nullptr).ok());
  }
}

TEST(GuidedOutputTest, KnowsWhatMustCome) {
  // "abcab", then "!" or the end; or "bc".
  const std::shared_ptr<OutputGuide> guide = Guide([](GrammarBuilder& b) {
    const Expression optional[] = {b.Literal("abcab"),
                                   b.Optional(b.Literal("!"))};
    const Expression either[] = {b.Sequence(optional), b.Literal("bc")};
    return b.Choice(either);
  });
  const auto forced = [&](const std::vector<TokenId>& said, int32_t most) {
    GuidedOutput output(guide);
    const auto next = output.Follow(said, {kEnd}, true, nullptr);
    EXPECT_TRUE(next.ok()) << next.status();
    return output.Forced(most);
  };
  EXPECT_THAT(forced({}, 4), ElementsAre());
  // The rest of it, by the longest tokens, bc ab; once somebody was there.
  EXPECT_THAT(forced({2}, 4), ElementsAre(8));
  EXPECT_THAT(forced({2, 8}, 4), ElementsAre(5));
  EXPECT_THAT(forced({2}, 4), ElementsAre(8, 5));
  EXPECT_THAT(forced({2}, 1), ElementsAre(8));
  EXPECT_THAT(forced({6}, 4), ElementsAre(5));
  EXPECT_THAT(forced({6, 5}, 4), ElementsAre());
  EXPECT_THAT(forced({3}, 4), ElementsAre(4));
}

TEST(GuidedOutputTest, SaysWhatItDoesNotAllow) {
  GuidedOutput output(Guide(AbcMany));
  const std::vector<TokenId> wrong = {6, 3};
  EXPECT_EQ(output.Follow(wrong, {kEnd}, true, nullptr).status(),
            absl::InvalidArgumentError("the output has token 3 at index 1, "
                                       "which its grammar does not allow"));
  for (const TokenId nothing : {kEnd, kVocab - 1}) {
    GuidedOutput other(Guide(AbcMany));
    const std::vector<TokenId> tokens = {nothing};
    EXPECT_EQ(other.Follow(tokens, {kEnd}, true, nullptr).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(GuidedOutputTest, AVocabularyThatCannotSayItIsNamed) {
  GuidedOutput output(Guide([](auto& b) { return b.Literal("xyz"); }));
  EXPECT_EQ(output.Follow({}, {kEnd}, true, nullptr).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

// Masks are found once, for all sequences; one that comes later is told the
// same.
TEST(GuidedOutputTest, SequencesShareWhatWasFound) {
  const std::shared_ptr<OutputGuide> guide = Guide(AbcMany);
  const std::vector<TokenId> tokens = {2, 3, 4, 6, 5};
  std::vector<std::vector<TokenId>> allowed;
  GuidedOutput first(guide);
  for (size_t n = 0; n <= tokens.size(); ++n) {
    ASSERT_EQ(*first.Follow({tokens.data(), n}, {kEnd}, true, nullptr),
              GuidedOutput::Next::kGoesOn);
    allowed.push_back(Allowed(first));
  }
  const int64_t found = guide->masks_found();
  EXPECT_EQ(found, 4);  // the beginning, behind a, ab, abc
  for (size_t n = 0; n <= tokens.size(); ++n) {
    GuidedOutput late(guide);
    ASSERT_EQ(*late.Follow({tokens.data(), n}, {kEnd}, true, nullptr),
              GuidedOutput::Next::kGoesOn);
    EXPECT_EQ(Allowed(late), allowed[n]) << n;
  }
  EXPECT_EQ(guide->masks_found(), found);
}

// The inside of a string is many states, by how long it may still be.
TEST(GuidedOutputTest, StatesThatAllowTheSameShareIt) {
  const std::shared_ptr<OutputGuide> guide =
      Guide([](auto& b) { return b.Repeat(b.ByteRange('a', 'c'), 0, 9); });
  std::vector<const TokenMask*> masks;
  auto state = guide->automaton().start();
  for (int n = 0; n <= 8; ++n) {
    const auto mask = guide->Allowed(state);
    ASSERT_TRUE(mask.ok() && *mask != nullptr);
    masks.push_back(mask->get());
    state = guide->automaton().Next(state, 'a');
  }
  EXPECT_EQ(guide->masks_found(), 9);
  // Three characters fit in behind up to six.
  for (int n = 0; n <= 6; ++n) EXPECT_EQ(masks[n], masks[0]) << n;
  EXPECT_NE(masks[7], masks[0]);
  EXPECT_NE(masks[8], masks[7]);
}

// When a guide forgets, sequences find their places again.
TEST(GuidedOutputTest, RoomThatIsMadeChangesNothing) {
  // (a|b|c)*a(a|b|c){17}: 2^18 states.
  const auto many = [](GrammarBuilder& b) {
    const Expression any = b.ByteRange('a', 'c');
    return b.Sequence(
        {b.Repeat(any, 0, kAnyNumber), b.Literal("a"), b.Repeat(any, 17, 17)});
  };
  const std::shared_ptr<OutputGuide> shared = Guide(many);
  const uint64_t before = shared->automaton().generation();
  std::mt19937 random(7);
  std::vector<std::unique_ptr<GuidedOutput>> outputs;
  for (int i = 0; i < 2; ++i) {
    outputs.push_back(std::make_unique<GuidedOutput>(shared));
  }
  std::vector<std::vector<TokenId>> tokens(outputs.size());
  for (int step = 0; step < 60000; ++step) {
    const size_t i = random() % outputs.size();
    ASSERT_EQ(*outputs[i]->Follow(tokens[i], {kEnd}, true, nullptr),
              GuidedOutput::Next::kGoesOn);
    const std::vector<TokenId> allowed = Allowed(*outputs[i]);
    // abc may come, and the end may if the 18th from it is an a.
    std::string text;
    for (const TokenId token : tokens[i]) {
      text += shared->vocabulary().text(token);
    }
    const bool may_end = text.size() >= 18 && text[text.size() - 18] == 'a';
    ASSERT_EQ(allowed.front() == kEnd, may_end) << step;
    tokens[i].push_back(2 + static_cast<TokenId>(random() % 3));
    if (tokens[i].size() > 200) {
      tokens[i].clear();
      outputs[i] = std::make_unique<GuidedOutput>(shared);
    }
  }
  EXPECT_GT(shared->automaton().generation(), before + 1);
}

// `count` texts of `length` letters that share few beginnings.
std::vector<std::string> RandomTexts(size_t count, size_t length,
                                     uint32_t letters) {
  std::mt19937 random(5);
  std::vector<std::string> texts(count);
  for (std::string& text : texts) {
    while (text.size() < length) {
      text += static_cast<char>('a' + random() % letters);
    }
  }
  return texts;
}

// What may come next is a matter of the output, not of what others have left.
TEST(GuidedOutputTest, OthersDoNotMakeAnAnswerFail) {
  constexpr TokenId kBetween = 4000;
  std::vector<std::string> texts = RandomTexts(kBetween, 12, 16);
  GrammarBuilder builder;
  const auto whole = builder.NewRule();
  std::vector<Expression> choices;
  for (const std::string& text : texts) {
    choices.push_back(builder.Literal(text));
  }
  // Each time some 45,000 states.
  builder.Define(whole,
                 builder.Repeat(builder.Sequence({builder.Choice(choices),
                                                  builder.Literal(";")}),
                                3, 3));
  Grammar grammar;
  ASSERT_TRUE(builder.Build(&grammar).ok());
  texts.push_back(";");
  auto made = OutputGuide::Make(
      grammar, std::make_shared<const Vocabulary>(std::move(texts)), 5000);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::shared_ptr<OutputGuide> guide = *std::move(made);
  for (int round = 0; round < 2; ++round) {
    GuidedOutput first(guide);
    GuidedOutput second(guide);
    std::vector<TokenId> output;
    for (TokenId length = 0; length < 6; ++length) {
      for (GuidedOutput* one_of : {&first, &second}) {
        const auto next = one_of->Follow(output, {}, true, nullptr);
        ASSERT_TRUE(next.ok()) << next.status();
        EXPECT_EQ(one_of->allowed()->Has(99), length % 2 == 0);
        EXPECT_EQ(one_of->allowed()->Has(kBetween), length % 2 == 1);
      }
      output.push_back(length % 2 == 0 ? 7 * round : kBetween);
    }
  }
  EXPECT_GT(guide->automaton().generation(), 2u);
}

// One that takes long at each token is given up; the others go on.
TEST(GuidedOutputTest, WhatTakesTooLongIsGivenUp) {
  // (a|b|c)?, 20,000 times: a state is at all those that are left.
  const auto guide = Guide([](auto& b) {
    return b.Repeat(b.Optional(b.ByteRange('a', 'c')), 20000, 20000);
  });
  GuidedOutput output(guide);
  std::vector<TokenId> tokens;
  absl::Status status;
  while (status.ok() && tokens.size() < 4000) {
    status = output.Follow(tokens, {}, true, nullptr).status();
    tokens.push_back(2);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_GT(tokens.size(), 20u);
  GuidedOutput other(guide);
  EXPECT_TRUE(other.Follow({}, {}, true, nullptr).ok());
}

StopParams Stop() {
  StopParams stop;
  stop.max_output_tokens = 4;
  stop.stop_token_ids = {kEnd};
  return stop;
}

TEST(GuidedSequenceTest, PlansWhatMayComeAndEndsWhenNothingMay) {
  Sequence sequence(SequenceId{1}, {20, 21}, 2, SamplingParams(), Stop());
  EXPECT_FALSE(sequence.guided());
  ASSERT_TRUE(sequence.Guide(Guide(AbcOnce)).ok());
  EXPECT_TRUE(sequence.guided());
  sequence.CommitComputed(1);
  // What a step samples is not known when the next one would be planned.
  EXPECT_FALSE(sequence.CanFollow());
  StepPlan plan;
  sequence.AppendTo(&plan, 10);
  ASSERT_NE(plan.sequences[0].allowed, nullptr);
  EXPECT_THAT(plan.sequences[0].allowed->Tokens(), ElementsAre(2, 5, 6, 7));
  sequence.CommitComputed(1);
  sequence.CommitSampled(5);
  EXPECT_FALSE(sequence.finished().has_value());
  sequence.CommitComputed(1);
  sequence.CommitSampled(4);
  EXPECT_EQ(sequence.finished(), FinishReason::kStop);
}

TEST(GuidedSequenceTest, ANewAttemptGoesOnWhereTheLastOneWas) {
  Sequence sequence(SequenceId{1}, {20, 21, 5}, 2, SamplingParams(), Stop());
  ASSERT_TRUE(sequence.Guide(Guide(AbcOnce)).ok());
  StepPlan plan;
  sequence.AppendTo(&plan, 10);
  EXPECT_THAT(plan.sequences[0].allowed->Tokens(), ElementsAre(4));
  Sequence wrong(SequenceId{1}, {20, 21, 4}, 2, SamplingParams(), Stop());
  EXPECT_EQ(wrong.Guide(Guide(AbcOnce)).code(),
            absl::StatusCode::kInvalidArgument);
  Sequence over(SequenceId{1}, {20, 21, 6}, 2, SamplingParams(), Stop());
  EXPECT_EQ(over.Guide(Guide(AbcOnce)).message(),
            "the output is all that its grammar allows");
}

TEST(GuidedSequenceTest, EndsByLengthStopTokenOrTrouble) {
  const auto after = [](std::vector<TokenId> tokens) {
    Sequence sequence(SequenceId{1}, {20, 21}, 2, SamplingParams(), Stop());
    EXPECT_TRUE(sequence
                    .Guide(Guide([](auto& b) {
                      return b.Choice({b.Repeat(b.Literal("ab"), 1, kAnyNumber),
                                       b.Literal("bxyz")});
                    }))
                    .ok());
    sequence.CommitComputed(1);
    for (const TokenId token : tokens) {
      sequence.CommitComputed(1);
      sequence.CommitSampled(token);
    }
    return sequence;
  };
  EXPECT_EQ(after({5, 5, 5, 5}).finished(), FinishReason::kLength);
  EXPECT_EQ(after({5, 5, kEnd}).finished(), FinishReason::kStop);
  const Sequence stuck = after({3});  // "xyz" is in no token
  EXPECT_FALSE(stuck.finished().has_value());
  EXPECT_EQ(stuck.guide_status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(after({5}).guide_status().ok());
}

}  // namespace
}  // namespace baton::scheduling
