// A decode worker under a virtual clock: the steps that DecodeScheduler plans
// (scheduling/decode_scheduler.h), without its sequences of tokens. Steps that
// differ in their context only are taken as one run (step_run.h): what a worker
// costs the simulation depends on how often its batch changes, not on how many
// tokens come out. tests/planner/fast_forward_test.cc holds both to be the
// same.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/device_side.h"
#include "planner/gap_histogram.h"
#include "planner/prompt_line.h"
#include "planner/step_run.h"
#include "scheduling/step_budget.h"
#include "scheduling/step_cost.h"

namespace baton::planner {

// What became of requests, by the number that the caller gave them.
class WorkerListener {
 public:
  virtual ~WorkerListener() = default;
  // Prefill workers: the step that begins computes the last of its prompt.
  virtual void OnLastChunk(uint32_t request, double now) {}
  // Its prompt is computed, since `started`; here is its first token.
  virtual void OnFirstToken(uint32_t request, double started, double now) = 0;
  // The first token after those that another worker made came so long after
  // the last of them.
  virtual void OnFirstGap(uint32_t request, double seconds) = 0;
  // The last token. `longest_gap` is between two tokens that came from here; 0:
  // there was none.
  virtual void OnFinished(uint32_t request, double longest_gap, double now) = 0;
};

// What a worker did.
struct WorkerUsage {
  double busy_seconds = 0;
  // Sum over its steps of how long they took times the sequences in them.
  double sequence_seconds = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;
  // Of prompts that would have been computed: those that were in its cache.
  // Prefill workers.
  int64_t cached_tokens = 0;
};

// As scheduling::DecodeSchedulerOptions.
struct DecodeSimulationOptions {
  scheduling::StepCost cost;
  // Most tokens of a step; see MostSequences.
  int32_t token_budget = 512;
  // What streams may wait for a token; 0: as long as it takes.
  double itl_target_seconds = 0;
  int32_t patience = 8;
  // Off: each step is a run of its own.
  bool fast_forward = true;
};

class DecodeSimulation final : public DeviceSide {
 public:
  // Most sequences that may run under a token budget: with more, streams would
  // take turns, which is not simulated.
  static int32_t MostSequences(int32_t token_budget);

  // `listener` and `gaps` outlive this; `gaps` may be shared with others.
  DecodeSimulation(const DecodeSimulationOptions& options,
                   WorkerListener* listener, GapHistogram* gaps);

  // Makes it the decode side of a dual worker, before it has work; `prefill`,
  // the other side, outlives it.
  void ShareWith(DeviceSide* prefill) { prefill_ = prefill; }
  double Share(double now) override;
  // As DecodeScheduler::SpareSeconds: what a step of the present streams leaves
  // of the time that they may wait for a token; 0: any time.
  double SpareSeconds(double now) const;

  // A sequence of `context` tokens whose next one came at `last_token_at` from
  // elsewhere, and `left` more are to come. REQUIRES: left >= 1.
  void AddStream(uint32_t request, int32_t context, int32_t left,
                 double last_token_at, double now);
  // A prompt to be computed here. REQUIRES: something of it is left.
  void AddPrompt(const SimulatedPrompt& prompt, double now);

  // A prefill worker computes the last chunk of a prompt whose stream will be
  // added: it should not have to wait for a long step. Until NoLongerComing.
  void Coming(double now);
  void NoLongerComing(double now);

  // When Advance is to be called; infinity while nothing runs. Adding a
  // sequence brings it forward: the step at that time is the last one without
  // it.
  double next_event() const;
  // Ends the run of steps and begins the next one.
  void Advance();

  // For load reports, as after the last step that was over at `now`.
  int32_t running() const;
  int32_t num_prompts() const {
    return line_.size() +
           static_cast<int32_t>(short_prompts_.size() + new_prompts_.size());
  }
  int64_t QueuedTokens(double now) const;
  int64_t ContextTokens(double now) const;
  // Calls visit(request, its computed tokens) for those that get a token in
  // each step.
  template <typename Function>
  void VisitStreams(double now, Function visit) const {
    const int64_t step = steps_ + (active() ? run_.StepsOver(now) : 0);
    for (const Stream& stream : streams_) {
      visit(stream.request, stream.base + step);
    }
  }

  const WorkerUsage& usage() const { return usage_; }

 private:
  struct Stream {
    int64_t last_step = 0;  // by steps_
    // Its computed tokens, less steps_.
    int64_t base = 0;
    uint32_t request = 0;
    uint32_t first_run = 0;
    // Since when it waits for the first token of these, and that token's step,
    // by steps_.
    double began_at = 0;
    int64_t first_step = 0;
  };
  struct NewStream {
    uint32_t request = 0;
    int32_t context = 0;
    int32_t left = 0;
    double last_token_at = 0;
    double landed_at = 0;
  };
  // The longest step of a run.
  struct Peak {
    uint32_t run = 0;
    double seconds = 0;
  };

  bool active() const { return run_.first > 0; }
  // The step at `now` shall be the last one of the run; begins one when idle.
  void Interrupt(double now);
  void Plan(double now);
  // As DecodeScheduler::PlanPrompts, beside what `shape` has of streams.
  void PlanPrompts(double now, scheduling::StepShape* shape);
  // The time for a step beside streams, or before those that are coming.
  double BudgetSeconds(double now, bool beside_streams);
  // How many steps like the one that was planned there will be.
  int64_t RunLength() const;

  void CountRun();
  void CommitPrompts(double now);
  void OnPromptEnd(const SimulatedPrompt& prompt, double now);
  void EndStreams(double now);
  void Join();
  void PushStream(uint32_t request, int64_t context, int32_t left,
                  uint32_t first_run, double began_at);
  double LongestSince(uint32_t run) const;

  const DecodeSimulationOptions options_;
  WorkerListener* const listener_;
  GapHistogram* const gaps_;

  StepRun run_;  // first == 0: idle
  uint32_t run_number_ = 0;
  // Of each of its steps: prompts by place in the line, and their tokens.
  std::vector<std::pair<size_t, int32_t>> chunks_;
  int64_t chunk_tokens_ = 0;  // of chunks_
  // Whether streams bound the time of its steps.
  bool time_bound_ = false;
  // The other side of a dual worker, or null; what its step takes of the
  // device in each step of the run.
  DeviceSide* prefill_ = nullptr;
  double beside_seconds_ = 0;

  int64_t steps_ = 0;
  // A heap, those that end first on top. Each gets a token in each step.
  std::vector<Stream> streams_;
  int32_t num_coming_ = 0;
  int64_t stream_context_ = 0;  // their computed tokens
  // Those whose first step is the first one of this run: request, and when its
  // last token came.
  std::vector<std::pair<uint32_t, double>> fresh_;
  PromptLine line_;
  // Prompts with one token left, which are as good as streams.
  std::vector<SimulatedPrompt> short_prompts_;
  scheduling::ChunkRamp ramp_;
  // Wait for the end of the run.
  std::vector<NewStream> new_streams_;
  std::vector<SimulatedPrompt> new_prompts_;
  // By run; each is less than the one before.
  std::vector<Peak> peaks_;

  WorkerUsage usage_;
};

}  // namespace baton::planner
