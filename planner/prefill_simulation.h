// A prefill worker under a virtual clock: the steps that PrefillScheduler plans
// (scheduling/prefill_scheduler.h), without its sequences of tokens, and taken
// in runs as those of decode_simulation.h.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/decode_simulation.h"
#include "planner/device_side.h"
#include "planner/prefix_cache_simulation.h"
#include "planner/prompt_line.h"
#include "planner/step_run.h"
#include "scheduling/step_cost.h"

namespace baton::planner {

// As scheduling::PrefillSchedulerOptions.
struct PrefillSimulationOptions {
  scheduling::StepCost cost;
  // Most tokens of a step, >= 1.
  int32_t token_budget = 512;
  int32_t block_size = 16;
  int32_t total_blocks = 0;
  int32_t patience = 8;
  // Off: each step is a run of its own.
  bool fast_forward = true;
};

class PrefillSimulation final : public DeviceSide {
 public:
  // `listener` and `cache` outlive this. Without a cache, nothing is cached.
  // This only holds in it what prompts find there when their turn comes; the
  // rest is the caller's.
  PrefillSimulation(const PrefillSimulationOptions& options,
                    WorkerListener* listener,
                    PrefixCacheSimulation* cache = nullptr);

  // Makes it the prefill side of a dual worker, before it has work: it runs
  // beside `decode` and takes its blocks out of `free_blocks`, which both sides
  // have; both outlive it. While streams run there, its steps take no longer
  // than these leave time for, as those of PrefillScheduler do
  // (StepOutlook::most_seconds). REQUIRES: no cache.
  void ShareWith(DecodeSimulation* decode, int32_t* free_blocks);
  // Blocks came back to those.
  void BlocksCame(double now);
  double Share(double now) override;

  // Queues a prompt. REQUIRES: something of it is left, and the worker has
  // blocks for it when it is idle.
  void Add(const SimulatedPrompt& prompt, double now);
  // Gives back the blocks of a prompt of so many tokens whose first token came:
  // its KV is elsewhere by now.
  void Release(int32_t tokens, double now);

  // As those of DecodeSimulation. Prompts are told of by OnFirstToken; they
  // hold their blocks until Release.
  double next_event() const;
  void Advance();

  int32_t free_blocks() const { return OwnBlocks() + SharedBlocks(); }
  // Prompts that are not computed yet, and their tokens after the last step
  // that was over at `now`.
  int32_t num_queued() const;
  int64_t QueuedTokens(double now) const;

  const WorkerUsage& usage() const { return usage_; }

 private:
  bool active() const { return run_.first > 0; }
  void Interrupt(double now);
  void Plan(double now);
  // Tokens of a prompt that join a step of `shape` which is to take at most so
  // long; 0: any time.
  int32_t Fitting(const scheduling::StepShape& shape, double most_seconds,
                  int32_t computed, int32_t most) const;
  // Whether the prompt has blocks now.
  bool GiveBlocks(SimulatedPrompt* prompt);
  int32_t OwnBlocks() const {
    return shared_blocks_ != nullptr ? *shared_blocks_ : own_blocks_;
  }
  void AddBlocks(int32_t count) {
    (shared_blocks_ != nullptr ? *shared_blocks_ : own_blocks_) += count;
  }
  int32_t SharedBlocks() const {
    return cache_ == nullptr ? 0 : cache_->shared_blocks();
  }

  const PrefillSimulationOptions options_;
  WorkerListener* const listener_;
  PrefixCacheSimulation* const cache_;

  StepRun run_;  // first == 0: idle
  // Of each of its steps: prompts by place in the line, and their tokens.
  std::vector<std::pair<size_t, int32_t>> chunks_;
  int64_t chunk_tokens_ = 0;

  PromptLine line_;
  std::vector<SimulatedPrompt> new_prompts_;  // wait for the end of the run
  int64_t queued_ = 0;                        // tokens left, new ones included
  // As if nothing was cached: of a dual worker, those of both sides.
  int32_t own_blocks_;
  int32_t* shared_blocks_ = nullptr;
  // Whether the last plan found too few blocks.
  bool lacks_blocks_ = false;
  // The other side of a dual worker, or null; what its step takes of the
  // device in each step of the run.
  DecodeSimulation* decode_ = nullptr;
  double beside_seconds_ = 0;

  WorkerUsage usage_;
};

}  // namespace baton::planner
