#include "scheduling/request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

absl::Status OutOfRange(const char* field, float value, const char* range) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be ", range));
}

// False for NaN too.
bool InRange(float value, float low, float high) {
  return value >= low && value <= high;
}

}  // namespace

absl::Status Validate(const SamplingParams& p) {
  if (!InRange(p.temperature, 0, 100)) {
    return OutOfRange("temperature", p.temperature, "between 0 and 100");
  }
  if (p.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k is ", p.top_k, ", it must be 0 (off) or more"));
  }
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return OutOfRange("top_p", p.top_p, "above 0 and at most 1");
  }
  if (!InRange(p.min_p, 0, 1)) {
    return OutOfRange("min_p", p.min_p, "between 0 and 1");
  }
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return OutOfRange("repetition_penalty", p.repetition_penalty,
                      "above 0 and at most 100");
  }
  if (!InRange(p.presence_penalty, -2, 2)) {
    return OutOfRange("presence_penalty", p.presence_penalty,
                      "between -2 and 2");
  }
  if (!InRange(p.frequency_penalty, -2, 2)) {
    return OutOfRange("frequency_penalty", p.frequency_penalty,
                      "between -2 and 2");
  }
  return absl::OkStatus();
}

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  LOG(FATAL) << "FinishReason " << static_cast<int>(reason);
}

std::optional<FinishReason> CheckFinished(const StopParams& stop,
                                          int32_t num_output_tokens,
                                          TokenId last_token) {
  CHECK_GE(num_output_tokens, 1);
  if (std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(),
                last_token) != stop.stop_token_ids.end()) {
    return FinishReason::kStop;
  }
  if (num_output_tokens >= stop.max_output_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace baton::scheduling
