#include "engine/cuda/step_layout.h"

#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;
using scheduling::StepPlan;
using testing::ElementsAre;

class StepLayoutTest : public testing::Test {
 protected:
  StepLayoutTest() : tokens_(1000), blocks_(100) {
    std::iota(tokens_.begin(), tokens_.end(), 0);
    std::iota(blocks_.begin(), blocks_.end(), 500);
    options_.group = 4;
    options_.max_span_pieces = 1000;
  }

  // `count` tokens from `first` on.
  PlannedSequence Sequence(int32_t first, int32_t count, bool sample) const {
    PlannedSequence s;
    s.tokens = absl::MakeSpan(tokens_).subspan(first, count);
    s.first_position = first;
    s.blocks = blocks_;
    s.sample = sample;
    return s;
  }
  StepLayout Whole(const StepPlan& plan) const {
    const std::vector<Pass> passes = CutIntoPasses(plan, 10000);
    EXPECT_EQ(passes.size(), 1u);
    return LayOut(plan, passes[0], options_);
  }

  std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  LayoutOptions options_;
};

TEST_F(StepLayoutTest, CutsLongStepsInTheOrderOfThePlan) {
  StepPlan plan;
  plan.sequences = {Sequence(0, 5, true), Sequence(10, 1, true),
                    Sequence(0, 9, false)};
  const std::vector<Pass> passes = CutIntoPasses(plan, 4);
  ASSERT_EQ(passes.size(), 4u);
  int32_t rows = 0;
  for (const Pass& pass : passes) {
    int32_t here = 0;
    for (const SequencePart& part : pass) here += part.count;
    EXPECT_LE(here, 4);
    rows += here;
  }
  EXPECT_EQ(rows, 15);
  EXPECT_EQ(passes[0][0].count, 4);
  EXPECT_EQ(passes[1][0].first, 4);
  EXPECT_EQ(passes[1][0].count, 1);
  EXPECT_EQ(passes[1][1].sequence, 1);
  EXPECT_EQ(passes[3].back().first + passes[3].back().count, 9);
  EXPECT_TRUE(CutIntoPasses(StepPlan(), 4).empty());
}

TEST_F(StepLayoutTest, RowsPlacesAndBlockTables) {
  StepPlan plan;
  plan.sequences = {Sequence(20, 3, true), Sequence(40, 1, true)};
  const StepLayout layout = Whole(plan);
  EXPECT_THAT(layout.tokens, ElementsAre(20, 21, 22, 40));
  EXPECT_EQ(layout.places[1].position, 21);
  EXPECT_EQ(layout.places[1].block_table, 0);
  EXPECT_EQ(layout.places[3].position, 40);
  EXPECT_EQ(layout.places[3].block_table, 2);  // 23 tokens take two blocks
  EXPECT_THAT(layout.block_tables, ElementsAre(500, 501, 500, 501, 502));
  EXPECT_EQ(layout.end_position, 41);
  ASSERT_EQ(layout.logit_rows.size(), 2u);
  EXPECT_EQ(layout.logit_rows[0].row, 2);
  EXPECT_EQ(layout.logit_rows[0].token, 2);
  EXPECT_EQ(layout.logit_rows[1].row, 3);
  EXPECT_EQ(layout.logit_rows[1].sequence, 1);
}

TEST_F(StepLayoutTest, TilesOfPromptsAndSpansOfTokens) {
  StepPlan plan;
  plan.sequences = {Sequence(100, 33, false), Sequence(600, 1, true)};
  const StepLayout layout = Whole(plan);
  // 16 tokens of 4 heads each: 33 are two tiles and a token.
  ASSERT_EQ(layout.full.whole.size(), 2u);
  EXPECT_EQ(layout.full.whole[1].first_row, 16);
  EXPECT_EQ(layout.full.whole[1].rows, 16);
  EXPECT_EQ(layout.full.whole[1].first_position, 116);
  ASSERT_EQ(layout.full.single.size(), 2u);
  EXPECT_EQ(layout.full.single[1].first_row, 33);
  EXPECT_EQ(layout.full.max_spans, 3);  // position 600
  // Only the last token goes on behind the last layer's KV.
  ASSERT_EQ(layout.last.single.size(), 1u);
  EXPECT_EQ(layout.last.single[0].first_row, 33);
  EXPECT_EQ(layout.last.single[0].first_output_row, 0);
  EXPECT_TRUE(layout.sliding.single.empty());
}

// Tiles whose queries fill blocks of 32, and spans of single tokens however
// many heads share the one key.
TEST_F(StepLayoutTest, LatentAttentionHasTilesOfItsOwn) {
  options_.latent = true;
  StepPlan plan;
  plan.sequences = {Sequence(100, 17, false), Sequence(600, 1, true)};
  options_.group = 20;
  StepLayout layout = Whole(plan);
  ASSERT_EQ(layout.full.whole.size(), 2u);
  EXPECT_EQ(layout.full.whole[1].first_row, 8);
  EXPECT_EQ(layout.full.whole[1].rows, 8);
  ASSERT_EQ(layout.full.single.size(), 2u);
  EXPECT_EQ(layout.full.max_spans, 3);
  options_.group = 128;
  layout = Whole(plan);
  EXPECT_TRUE(layout.full.whole.empty());
  EXPECT_EQ(layout.full.single.size(), 18u);
  // Without memory for their sums they run whole.
  options_.max_span_pieces = 10;
  layout = Whole(plan);
  EXPECT_EQ(layout.full.whole.size(), 18u);
  EXPECT_TRUE(layout.full.single.empty());
}

TEST_F(StepLayoutTest, LongPassesAreCutForGroupsOfWarps) {
  options_.group_attention = true;
  options_.window = 50;
  StepPlan plan;
  plan.sequences = {Sequence(100, 63, true), Sequence(600, 1, true)};
  StepLayout layout = Whole(plan);
  EXPECT_EQ(layout.full.whole.size(), 4u);
  EXPECT_EQ(layout.full.tile_queries, kTileQueries);
  // Tokens by themselves do not count.
  plan.sequences[0] = Sequence(100, 64, true);
  EXPECT_EQ(Whole(plan).full.tile_queries, kTileQueries);
  plan.sequences[0] = Sequence(100, 65, true);
  layout = Whole(plan);
  // The last token runs its spans apart.
  ASSERT_EQ(layout.full.whole.size(), 2u);
  EXPECT_EQ(layout.full.single.size(), 2u);
  EXPECT_EQ(layout.full.tile_queries, kGroupTileQueries);
  EXPECT_EQ(layout.full.whole[1].rows, 32);
  EXPECT_EQ(layout.full.whole[1].first_position, 132);
  EXPECT_EQ(layout.sliding.tile_queries, kGroupTileQueries);
  // The last layer has a token of each sequence.
  EXPECT_EQ(layout.last.tile_queries, kTileQueries);
  EXPECT_EQ(layout.last.single.size(), 2u);
}

TEST_F(StepLayoutTest, WindowsShortenSpans) {
  options_.window = 100;
  options_.last_layer_slides = true;
  StepPlan plan;
  plan.sequences = {Sequence(600, 1, true)};
  const StepLayout layout = Whole(plan);
  EXPECT_EQ(layout.full.max_spans, 3);
  EXPECT_EQ(layout.sliding.max_spans, 2);  // 501 to 600
  EXPECT_EQ(layout.last.max_spans, 2);
  // Two that share a block have the spans of both: from 255 to 512.
  options_.window = 257;
  plan.sequences = {Sequence(511, 2, true)};
  plan.sequences[0].num_drafts = 1;
  EXPECT_EQ(Whole(plan).sliding.max_spans, 3);
  EXPECT_EQ(Whole(plan).last.max_spans, 2);
}

TEST_F(StepLayoutTest, SpansThatDoNotFitRunInOneBlock) {
  options_.max_span_pieces = 5;
  StepPlan plan;
  plan.sequences = {Sequence(600, 1, true), Sequence(10, 1, true)};
  const StepLayout layout = Whole(plan);
  EXPECT_TRUE(layout.full.single.empty());
  EXPECT_EQ(layout.full.whole.size(), 2u);
  EXPECT_EQ(layout.full.max_spans, 0);
  // Each of several rows has its spans.
  plan.sequences = {Sequence(300, 3, true)};
  plan.sequences[0].num_drafts = 2;
  EXPECT_TRUE(Whole(plan).full.single.empty());
  EXPECT_EQ(Whole(plan).full.span_rows, 1);
  options_.max_span_pieces = 6;
  EXPECT_EQ(Whole(plan).full.single.size(), 1u);
  // Nor do more heads than a span's block has rows.
  options_.max_span_pieces = 1000;
  options_.group = 17;
  EXPECT_TRUE(Whole(plan).full.single.empty());
}

TEST_F(StepLayoutTest, ScoredTokensAllHaveLogits) {
  StepPlan plan;
  PlannedSequence s = Sequence(0, 3, false);
  s.targets = s.tokens;
  plan.sequences = {s};
  const StepLayout layout = Whole(plan);
  ASSERT_EQ(layout.logit_rows.size(), 3u);
  EXPECT_EQ(layout.logit_rows[1].token, 1);
  // Only those that have a target, and the last, in passes of any size.
  plan.sequences[0].targets = s.tokens.first(1);
  EXPECT_EQ(Whole(plan).logit_rows.size(), 1u);
  plan.sequences[0].sample = true;
  EXPECT_EQ(Whole(plan).logit_rows.size(), 2u);
  int32_t rows = 0;
  for (const Pass& pass : CutIntoPasses(plan, 2)) {
    rows +=
        static_cast<int32_t>(LayOut(plan, pass, options_).logit_rows.size());
  }
  EXPECT_EQ(rows, 2);
  EXPECT_FALSE(IsDecodePass(plan, CutIntoPasses(plan, 10)[0]));
}

TEST_F(StepLayoutTest, DecodePasses) {
  StepPlan plan;
  plan.sequences = {Sequence(5, 1, true), Sequence(9, 1, true)};
  EXPECT_TRUE(IsDecodePass(plan, CutIntoPasses(plan, 10)[0]));
  plan.sequences.push_back(Sequence(3, 1, false));
  EXPECT_FALSE(IsDecodePass(plan, CutIntoPasses(plan, 10)[0]));
  plan.sequences.back() = Sequence(3, 2, true);
  EXPECT_FALSE(IsDecodePass(plan, CutIntoPasses(plan, 10)[0]));
  EXPECT_TRUE(HasSeveralRows(CutIntoPasses(plan, 10)[0]));
  // The last token of a prompt, where that is by itself.
  const std::vector<Pass> passes = CutIntoPasses(plan, 3);
  EXPECT_FALSE(IsDecodePass(plan, passes[0]));
  EXPECT_TRUE(IsDecodePass(plan, passes[1]));
  EXPECT_FALSE(HasSeveralRows(passes[1]));
}

TEST_F(StepLayoutTest, GuessesShareWhatTheyRead) {
  StepPlan plan;
  plan.sequences = {Sequence(30, 4, true), Sequence(50, 1, true)};
  plan.sequences[0].num_drafts = 3;
  EXPECT_TRUE(IsDecodePass(plan, CutIntoPasses(plan, 10)[0]));
  EXPECT_TRUE(HasSeveralRows(CutIntoPasses(plan, 10)[0]));
  StepLayout layout = Whole(plan);
  EXPECT_TRUE(layout.full.whole.empty());
  ASSERT_EQ(layout.full.single.size(), 2u);
  EXPECT_EQ(layout.full.span_rows, 4);
  EXPECT_EQ(layout.full.single[0].rows, 4);
  EXPECT_EQ(layout.full.single[0].first_position, 30);
  EXPECT_EQ(layout.full.single[1].rows, 1);
  EXPECT_EQ(layout.full.single[1].first_row, 4);
  ASSERT_EQ(layout.logit_rows.size(), 5u);
  for (int32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(layout.logit_rows[i].row, i);
    EXPECT_EQ(layout.logit_rows[i].sequence, 0);
    EXPECT_EQ(layout.logit_rows[i].token, i);
  }
  // As many as a block has room for.
  options_.group = 8;
  layout = Whole(plan);
  ASSERT_EQ(layout.full.single.size(), 3u);
  EXPECT_EQ(layout.full.span_rows, 2);
  EXPECT_EQ(layout.full.single[1].rows, 2);
  EXPECT_EQ(layout.full.single[1].first_row, 2);
  EXPECT_EQ(layout.full.single[1].first_position, 32);
  EXPECT_EQ(layout.full.single[1].block_table, 0);
  options_.latent = true;
  EXPECT_EQ(Whole(plan).full.single.size(), 5u);
  EXPECT_EQ(Whole(plan).full.span_rows, 1);
  options_.latent = false;
  // Wherever they are cut.
  const std::vector<Pass> passes = CutIntoPasses(plan, 3);
  ASSERT_EQ(passes.size(), 2u);
  EXPECT_TRUE(IsDecodePass(plan, passes[1]));
  EXPECT_FALSE(HasSeveralRows(passes[1]));
  EXPECT_EQ(LayOut(plan, passes[0], options_).logit_rows.size(), 3u);
  layout = LayOut(plan, passes[1], options_);
  ASSERT_EQ(layout.logit_rows.size(), 2u);
  EXPECT_EQ(layout.logit_rows[0].token, 3);
  EXPECT_EQ(layout.full.single[0].first_position, 33);
  // Beside a prompt, whose rows alone are a prompt's.
  options_.group_attention = true;
  plan.sequences.push_back(Sequence(0, kGroupAttentionRows - 1, true));
  EXPECT_FALSE(IsDecodePass(plan, CutIntoPasses(plan, 1000)[0]));
  layout = Whole(plan);
  EXPECT_EQ(layout.full.single.size(), 5u);
  EXPECT_EQ(layout.full.tile_queries, kTileQueries);
  EXPECT_EQ(layout.logit_rows.size(), 6u);
}

}  // namespace
}  // namespace baton::engine::cuda
