#include "worker/calibration.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"

namespace baton::worker {
namespace {

using scheduling::PlannedSequence;
using scheduling::StepPlan;

constexpr int kRepetitions = 3;
// Seconds of a step that runs twice only.
constexpr double kLong = 0.1;
// Positions before a stream's token.
constexpr int32_t kStreamContext = 128;

// Sequences side by side in the first blocks of KV memory. Positions that no
// step has computed hold what memory holds at first, zeros.
class Steps {
 public:
  explicit Steps(const engine::Engine& engine)
      : layout_(engine.kv_layout()),
        room_(std::min<int64_t>(
            engine.model().max_position,
            int64_t{layout_.num_blocks} * layout_.block_size)) {}

  // Whether so many sequences of so many positions each fit.
  bool Fits(int32_t sequences, int32_t positions) const {
    return positions <= room_ &&
           int64_t{sequences} * layout_.BlocksFor(positions) <=
               layout_.num_blocks;
  }

  // `count` sequences of `tokens` new tokens after `computed` ones. The plan
  // points into this and is good until the next one.
  // REQUIRES: Fits(count, computed + tokens).
  StepPlan Plan(int32_t count, int32_t computed, int32_t tokens) {
    const int32_t each = layout_.BlocksFor(computed + tokens);
    history_.assign(static_cast<size_t>(computed + tokens), TokenId{0});
    blocks_.resize(static_cast<size_t>(count) * static_cast<size_t>(each));
    for (size_t i = 0; i < blocks_.size(); ++i) {
      blocks_[i] = static_cast<BlockId>(i);
    }
    StepPlan plan;
    for (int32_t i = 0; i < count; ++i) {
      PlannedSequence& sequence = plan.sequences.emplace_back();
      sequence.sequence = static_cast<SequenceId>(i + 1);
      sequence.history = history_;
      sequence.tokens =
          absl::MakeSpan(history_).subspan(static_cast<size_t>(computed));
      sequence.first_position = computed;
      sequence.blocks = absl::MakeSpan(blocks_).subspan(
          static_cast<size_t>(i) * static_cast<size_t>(each),
          static_cast<size_t>(each));
      sequence.sample = true;
      sequence.sampling = &sampling_;
      sequence.prompt_length = computed + tokens;
    }
    return plan;
  }

 private:
  const engine::KvLayout& layout_;
  const int64_t room_;
  const scheduling::SamplingParams sampling_;
  std::vector<TokenId> history_;
  std::vector<BlockId> blocks_;
};

struct Shape {
  int32_t sequences = 1;
  int32_t computed = 0;
  int32_t tokens = 1;
};

}  // namespace

scheduling::StepCostModel Calibrate(const CalibrationOptions& options,
                                    engine::Engine* engine,
                                    const Clock* clock) {
  CHECK_GE(options.token_budget, 1);
  scheduling::StepCostModel model;
  Steps steps(*engine);
  const auto run = [&](const StepPlan& plan) {
    const absl::Time started = clock->Now();
    engine->Execute(plan, [](int32_t) {});
    return absl::ToDoubleSeconds(clock->Now() - started);
  };
  // The first one touches the weights, which may lie on a disk yet.
  run(steps.Plan(1, 0, 1));
  double last = run(steps.Plan(1, 0, 1));
  int32_t last_tokens = 1;
  // What a stream reads is not told by short ones, nor by prompts.
  const int32_t long_context = steps.Fits(4, 1792 + 1) ? 1792 : 448;
  const std::vector<Shape> shapes = {
      {1, kStreamContext, 1},
      {4, kStreamContext, 1},
      {4, long_context, 1},
      {16, kStreamContext, 1},
      {1, 0, 16},
      {1, 0, 64},
      {1, 0, 256},
      // What a token of a long prompt reads is not told by short ones.
      {1, 768, 256},
      // Nor, where 256 tokens wait for memory still, what computing one takes.
      {1, 0, 1024},
      {1, 0, 2048},
  };
  for (const Shape& shape : shapes) {
    const int32_t tokens = shape.sequences * shape.tokens;
    if (!steps.Fits(shape.sequences, shape.computed + shape.tokens) ||
        tokens > options.token_budget) {
      continue;
    }
    // Between what memory bounds (no longer) and what computing does.
    const double expected = last * std::max(1.0, 0.5 * tokens / last_tokens);
    if (expected > absl::ToDoubleSeconds(options.longest_step)) break;
    const StepPlan plan =
        steps.Plan(shape.sequences, shape.computed, shape.tokens);
    double best = run(plan);
    for (int i = 1; i < kRepetitions && (i < 2 || best < kLong); ++i) {
      best = std::min(best, run(plan));
    }
    last = best;
    last_tokens = tokens;
    // So often that a real step or two do not outweigh them.
    for (int i = 0; i < kRepetitions; ++i) {
      model.Observe(scheduling::ShapeOf(plan), best);
    }
  }
  return model;
}

}  // namespace baton::worker
