#include "planner/prompt_line.h"

#include <algorithm>
#include <cmath>

#include "common/log.h"

namespace baton::planner {

PromptLine::PromptLine(int32_t patience, const scheduling::StepCost& cost)
    : patience_(patience), cost_(cost) {
  CHECK_GE(patience, 1);
}

void PromptLine::Add(const SimulatedPrompt& prompt) {
  CHECK_GE(prompt.left, 1);
  prompts_.push_back(prompt);
  num_due_ += std::isfinite(prompt.due);
}

std::vector<SimulatedPrompt> PromptLine::TakeWithAtMost(int32_t left) {
  std::vector<SimulatedPrompt> taken;
  const auto is_taken = [left](const SimulatedPrompt& prompt) {
    return prompt.left <= left;
  };
  if (std::none_of(prompts_.begin(), prompts_.end(), is_taken)) return taken;
  if (is_taken(prompts_.front())) {
    passed_over_ = 0;
    oldest_planned_ = others_planned_ = false;
  }
  for (const SimulatedPrompt& prompt : prompts_) {
    if (!is_taken(prompt)) continue;
    taken.push_back(prompt);
    num_due_ -= std::isfinite(prompt.due);
  }
  std::erase_if(prompts_, is_taken);
  return taken;
}

double PromptLine::PredictedSeconds(const SimulatedPrompt& prompt,
                                    int32_t chunk,
                                    double beside_seconds) const {
  const int32_t computed = prompt.has_blocks
                               ? prompt.computed
                               : std::max(prompt.computed, prompt.cached);
  const int32_t left = prompt.computed + prompt.left - computed;
  const int32_t steps = (left + chunk - 1) / chunk;
  return cost_.PrefillSeconds(computed, left, chunk) +
         static_cast<double>(steps) * beside_seconds;
}

const std::vector<size_t>& PromptLine::Order(double now, int32_t chunk,
                                             double beside_seconds) {
  CHECK_GE(chunk, 1);
  if (oldest_planned_) {
    passed_over_ = 0;
  } else if (others_planned_) {
    ++passed_over_;
  }
  oldest_planned_ = others_planned_ = false;
  order_.clear();
  late_.clear();
  if (num_due_ == 0 || !cost_.known()) {
    for (size_t i = 0; i < prompts_.size(); ++i) order_.push_back(i);
    return order_;
  }
  // Who cannot be in time any more comes behind the others.
  double at = now;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    const double end =
        at + PredictedSeconds(prompts_[i], chunk, beside_seconds);
    if (end > prompts_[i].due) {
      late_.push_back(i);
    } else {
      order_.push_back(i);
      at = end;
    }
  }
  order_.insert(order_.end(), late_.begin(), late_.end());
  if (passed_over_ >= patience_) {
    const auto oldest = std::find(order_.begin(), order_.end(), size_t{0});
    std::rotate(order_.begin(), oldest, oldest + 1);
  }
  return order_;
}

void PromptLine::Planned(size_t place) {
  if (place == 0) {
    oldest_planned_ = true;
  } else {
    others_planned_ = true;
  }
}

}  // namespace baton::planner
