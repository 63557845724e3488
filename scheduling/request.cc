#include "scheduling/request.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

absl::Status OutOfRange(absl::string_view field, float value,
                        absl::string_view range) {
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be ", range));
}

// False for NaN too.
bool InRange(float value, float low, float high) {
  return value >= low && value <= high;
}

absl::Status ValidateBias(const std::vector<LogitBias>& biases) {
  if (biases.size() > static_cast<size_t>(kMaxLogitBias)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logit_bias has ", biases.size(),
                     " tokens, it may have at most ", kMaxLogitBias));
  }
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto [token, bias] = biases[i];
    if (token < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("logit_bias has token ", token));
    }
    if (!InRange(bias, -kMaxBias, kMaxBias)) {
      return OutOfRange(absl::StrCat("logit_bias of token ", token), bias,
                        "between -100 and 100");
    }
    if (i > 0 && token <= biases[i - 1].token) {
      return absl::InvalidArgumentError(
          token == biases[i - 1].token
              ? absl::StrCat("logit_bias has token ", token, " twice")
              : std::string("logit_bias is not sorted by token"));
    }
  }
  return absl::OkStatus();
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
  return ValidateBias(p.logit_bias);
}

absl::Status Validate(const SamplingParams& params, const StopParams& stop) {
  if (params.allowed == nullptr || stop.min_output_tokens == 0 ||
      params.allowed->HasBeside(stop.stop_token_ids)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "allowed_token_ids has none but tokens that end the answer, which is to "
      "have ",
      stop.min_output_tokens, " tokens at least"));
}

const char* RequestClassName(RequestClass request_class) {
  return request_class == RequestClass::kBatch ? "batch" : "interactive";
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
  if (num_output_tokens > stop.min_output_tokens &&
      std::find(stop.stop_token_ids.begin(), stop.stop_token_ids.end(),
                last_token) != stop.stop_token_ids.end()) {
    return FinishReason::kStop;
  }
  if (num_output_tokens >= stop.max_output_tokens) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace baton::scheduling
