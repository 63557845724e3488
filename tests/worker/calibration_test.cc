#include "worker/calibration.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "scheduling/step_cost.h"
#include "tests/support/manual_clock.h"

namespace baton::worker {
namespace {

// Takes the time that a cost says, or `least` seconds, by a clock that it
// moves.
class ClockedEngine final : public engine::Engine {
 public:
  ClockedEngine(const scheduling::StepCost& cost, int32_t num_blocks,
                int32_t max_position, double least = 0)
      : cost_(cost), least_(least) {
    layout_.num_blocks = num_blocks;
    model_.max_position = max_position;
  }

  const engine::ModelConfig& model() const override { return model_; }
  const std::string& model_identity() const override { return name_; }
  const std::string& backend_name() const override { return name_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<std::byte> kv_memory() override { return {}; }

  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override {
    for (const scheduling::PlannedSequence& sequence : plan.sequences) {
      const auto end = sequence.first_position +
                       static_cast<int32_t>(sequence.tokens.size());
      EXPECT_LE(end, model_.max_position);
      EXPECT_GE(sequence.blocks.size(),
                static_cast<size_t>(layout_.BlocksFor(end)));
      for (const BlockId block : sequence.blocks) {
        EXPECT_GE(block, 0);
        EXPECT_LT(block, layout_.num_blocks);
        EXPECT_TRUE(std::count(in_step_.begin(), in_step_.end(), block) == 0);
        in_step_.push_back(block);
      }
      EXPECT_EQ(sequence.history.size(), static_cast<size_t>(end));
      EXPECT_NE(sequence.sampling, nullptr);
    }
    in_step_.clear();
    const scheduling::StepShape shape = scheduling::ShapeOf(plan);
    most_tokens_ = std::max(most_tokens_, shape.tokens);
    // Every other step is held up by another program.
    const double seconds =
        std::max(least_, cost_.Seconds(shape)) * (++steps_ % 2 == 0 ? 1 : 3);
    clock_.Advance(absl::Seconds(seconds));
    return {};
  }

  const Clock* clock() const { return &clock_; }
  int64_t steps() const { return steps_; }
  int64_t most_tokens() const { return most_tokens_; }

 private:
  const scheduling::StepCost cost_;
  const double least_;
  const std::string name_ = "timed";
  engine::ModelConfig model_;
  engine::KvLayout layout_;
  test::ManualClock clock_;
  std::vector<BlockId> in_step_;
  int64_t steps_ = 0;
  int64_t most_tokens_ = 0;
};

constexpr scheduling::StepCost kCost = {.fixed = 0.01,
                                        .per_token = 0.001,
                                        .per_context_token = 1e-7,
                                        .per_prompt_context_token = 2e-8};

TEST(CalibrationTest, FindsWhatStreamsAndPromptsCost) {
  ClockedEngine engine(kCost, 1000, 2048);
  const scheduling::StepCostModel model =
      Calibrate({}, &engine, engine.clock());
  ASSERT_TRUE(model.cost().known());
  for (const scheduling::StepShape& shape :
       {scheduling::StepShape{1, 100, 1}, scheduling::StepShape{4, 400, 4},
        scheduling::StepShape{16, 16 * 1500, 16},
        scheduling::ChunkShape(0, 256), scheduling::ChunkShape(1500, 512)}) {
    EXPECT_NEAR(model.cost().Seconds(shape) / kCost.Seconds(shape), 1, 0.05)
        << shape.tokens;
  }
  EXPECT_EQ(engine.most_tokens(), 256);
  EXPECT_LE(engine.steps(), 25);
}

TEST(CalibrationTest, KeepsWithinTheTokenBudget) {
  ClockedEngine engine(kCost, 1000, 2048);
  EXPECT_TRUE(
      Calibrate({.token_budget = 20}, &engine, engine.clock()).cost().known());
  EXPECT_EQ(engine.most_tokens(), 16);
}

// A device reads its weights in the time in which it computes 160 tokens: small
// steps say little of what a token costs.
TEST(CalibrationTest, LargeBudgetsSayWhatComputingCosts) {
  ClockedEngine engine({.per_token = 23e-6}, 1000, 2048, /*least=*/0.0037);
  const scheduling::StepCostModel model =
      Calibrate({.token_budget = 2048}, &engine, engine.clock());
  EXPECT_EQ(engine.most_tokens(), 2048);
  EXPECT_NEAR(
      model.cost().Seconds(scheduling::ChunkShape(0, 2048)) / (2048 * 23e-6), 1,
      0.1);
}

TEST(CalibrationTest, KeepsWithinKvMemoryAndContext) {
  ClockedEngine one_block(kCost, 1, 2048);
  EXPECT_TRUE(Calibrate({}, &one_block, one_block.clock()).cost().known());
  EXPECT_EQ(one_block.most_tokens(), 16);
  ClockedEngine short_context(kCost, 1000, 70);
  Calibrate({}, &short_context, short_context.clock());
  EXPECT_EQ(short_context.most_tokens(), 64);
}

TEST(CalibrationTest, LeavesOutWhatWouldTakeLong) {
  ClockedEngine engine({.fixed = 0.1, .per_token = 0.1}, 1000, 2048);
  Calibrate({}, &engine, engine.clock());
  EXPECT_EQ(engine.most_tokens(), 4);
  ClockedEngine slow({.fixed = 10}, 1000, 2048);
  EXPECT_FALSE(Calibrate({}, &slow, slow.clock()).cost().known());
  EXPECT_EQ(slow.steps(), 2);
}

}  // namespace
}  // namespace baton::worker
