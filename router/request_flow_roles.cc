// RequestFlow: what role control hears of requests (router/role_control.h).
#include <algorithm>
#include <cstdint>

#include "router/request_flow.h"
#include "router/request_report.h"

namespace baton::router {
namespace {

// Of an answer that grows, so many tokens at a time are told.
constexpr int32_t kTellTokens = 16;

int32_t PromptTokens(const RequestRecord& record) {
  return static_cast<int32_t>(record.spec.prompt.size());
}

double ItlTarget(const RequestRecord& record) {
  return std::max(0.0, absl::ToDoubleSeconds(record.answer.itl_target));
}

}  // namespace

void RequestFlow::TellBegan(RequestRecord& record, int32_t cached_tokens,
                            absl::Time now) {
  if (record.told_tokens.has_value()) return;
  record.told_tokens = 0;
  const int32_t prompt = PromptTokens(record);
  cluster_->roles().Began(
      {.computed_tokens = std::clamp(prompt - cached_tokens, 0, prompt),
       .prompt_tokens = prompt,
       .itl_target_seconds = ItlTarget(record)},
      now);
}

void RequestFlow::TellProduced(RequestRecord& record, absl::Time now) {
  const int32_t told = record.told_tokens.value_or(record.output_tokens);
  if (record.output_tokens - told < kTellTokens) return;
  cluster_->roles().Produced(PromptTokens(record), told, record.output_tokens,
                             now);
  record.told_tokens = record.output_tokens;
}

void RequestFlow::TellEnded(const RequestRecord& record, absl::Time now) {
  const v1::Usage usage = MakeUsage(record);
  const int32_t prompt = PromptTokens(record);
  const auto cached = static_cast<int32_t>(usage.cached_prompt_tokens());
  cluster_->roles().Ended(
      {.computed_tokens = std::clamp(prompt - cached, 0, prompt),
       .prompt_tokens = prompt,
       .output_tokens = record.output_tokens,
       .itl_target_seconds = ItlTarget(record),
       .begun = record.told_tokens.has_value(),
       .told_tokens = record.told_tokens.value_or(0)},
      now);
}

}  // namespace baton::router
