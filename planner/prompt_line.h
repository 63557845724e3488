// The prompts that a simulated worker has yet to compute, and in which order:
// what scheduling::PromptQueue does for requests of one class and priority,
// without their tokens. tests/planner/fast_forward_test.cc holds both to give
// the same order.
//
// Seconds of the virtual clock. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "scheduling/step_cost.h"

namespace baton::planner {

struct SimulatedPrompt {
  uint32_t request = 0;
  int32_t computed = 0;  // tokens whose KV is there
  int32_t left = 0;      // to be computed
  int32_t output = 0;
  // When the first token is to come; infinity: whenever.
  double due = 0;
  // When the first step with some of it began; below zero: none did.
  double started = -1;
  // Prefill workers: tokens that were in the cache when it came, which its turn
  // finds again unless they are evicted.
  int32_t cached = 0;
  bool has_blocks = false;
  // The listener knows that its last chunk is computed.
  bool nears_end = false;
};

class PromptLine final {
 public:
  PromptLine(int32_t patience, const scheduling::StepCost& cost);

  void Add(const SimulatedPrompt& prompt);
  // Takes out those with at most so many tokens left, in order of arrival.
  std::vector<SimulatedPrompt> TakeWithAtMost(int32_t left);

  // In which order they are to be computed from now on, by place in prompts();
  // valid until the next call. As PromptQueue::Order: in steps of at most
  // `chunk` tokens, which take `beside_seconds` besides.
  const std::vector<size_t>& Order(double now, int32_t chunk,
                                   double beside_seconds);
  // The last step computed some of this one.
  void Planned(size_t place);

  // Whether the order stays the same while no prompt comes or ends.
  bool is_steady() const { return prompts_.size() < 2 || num_due_ == 0; }
  bool empty() const { return prompts_.empty(); }
  int32_t size() const { return static_cast<int32_t>(prompts_.size()); }
  // In order of arrival.
  std::vector<SimulatedPrompt>& prompts() { return prompts_; }
  const std::vector<SimulatedPrompt>& prompts() const { return prompts_; }

 private:
  double PredictedSeconds(const SimulatedPrompt& prompt, int32_t chunk,
                          double beside_seconds) const;

  const int32_t patience_;
  const scheduling::StepCost cost_;
  std::vector<SimulatedPrompt> prompts_;
  int32_t num_due_ = 0;
  std::vector<size_t> order_;
  std::vector<size_t> late_;
  // As in PromptQueue.
  int32_t passed_over_ = 0;
  bool oldest_planned_ = false;
  bool others_planned_ = false;
};

}  // namespace baton::planner
