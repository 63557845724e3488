// How much of a prompt a step may compute beside running streams: so much that
// the step is predicted to end within a time that follows from what the streams
// may wait for a token.
//
// Pure. One thread.
#pragma once

#include <cstdint>

#include "scheduling/step_cost.h"

namespace baton::scheduling {

// What a step computes of its first prompt at least, however little time the
// streams beside it leave.
inline constexpr int32_t kLeastChunk = 16;

// The time for a step when a stream may wait so long between two tokens, in
// seconds: a part of it is for what comes between two steps, for the way to the
// client, and for what the prediction misses.
double StepBudgetSeconds(double itl_target_seconds);

// By how much a stream is behind its target that came `elapsed_seconds` ago
// (landed, or had its first token here), and has had `tokens` since: who has
// waited longer than 0.95 of the target for each. Below 0: it is not.
double SecondsBehind(double itl_target_seconds, double elapsed_seconds,
                     int64_t tokens);

// The time for a step beside such a stream: it is to catch up, since clients
// see the mean of all its gaps, whether it waited for the end of a long step
// when it came, or steps took longer than predicted. In (0, StepBudgetSeconds].
// REQUIRES: itl_target_seconds > 0.
double CatchUpBudgetSeconds(double itl_target_seconds, double behind_seconds);

// Whether it is too far behind for that, two targets: it would cost prompts a
// lot, and may never get there. The caller takes it for one that has just come,
// from now on.
bool IsLost(double itl_target_seconds, double behind_seconds);

// Whether a prompt's chunk should join a step in which `ending` prompts end,
// when `waiting` prompts, its own included, are not in the step yet: those that
// end get their first tokens later by the chunk, and all that wait are spared a
// step's fixed cost. Under load, when many wait, steps become full. True while
// nothing is known.
bool PaysToJoin(const StepCost& cost, const StepShape& chunk, int32_t ending,
                int32_t waiting);

// Most tokens, in [0, most], of a chunk behind `computed` tokens of its prompt,
// so that a step that also does `beside` is predicted to take at most
// `budget_seconds`. The last token of the chunk is taken to be sampled from.
// REQUIRES: cost.known(), most >= 0.
int32_t MaxChunkTokens(const StepCost& cost, const StepShape& beside,
                       double budget_seconds, int64_t computed, int32_t most);

// A bound for chunks beside streams besides the predicted time. What was fitted
// to steps of streams alone says little of prompts: the first chunk could take
// many times what it was predicted. So a step takes at most twice as many
// prompt tokens as one had before it, and begins anew when there were none for
// so long that the cost model has forgotten them.
class ChunkRamp final {
 public:
  // `first` and `most` tokens, 1 <= first <= most.
  ChunkRamp(int32_t first, int32_t most);

  int32_t limit() const { return limit_; }
  // A step was planned with so many prompt tokens.
  void Planned(int32_t prompt_tokens);

 private:
  const int32_t first_;
  const int32_t most_;
  int32_t limit_;
  int32_t steps_without_ = 0;
};

}  // namespace baton::scheduling
