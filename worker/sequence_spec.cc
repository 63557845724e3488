#include "worker/sequence_spec.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/trace_context.h"

namespace baton::worker {
namespace {

constexpr uint32_t kMaxOutputTokens = 1u << 24;

absl::StatusOr<std::vector<TokenId>> CheckedTokens(
    const google::protobuf::RepeatedField<uint32_t>& tokens, int32_t vocab_size,
    const char* field) {
  std::vector<TokenId> out;
  out.reserve(tokens.size());
  for (uint32_t token : tokens) {
    if (token >= static_cast<uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence.", field, " has token ", token,
                       ", the vocabulary has ", vocab_size));
    }
    out.push_back(static_cast<TokenId>(token));
  }
  return out;
}

absl::StatusOr<std::vector<scheduling::LogitBias>> CheckedBias(
    const v1::ResolvedSampling& wire, int32_t vocab_size) {
  if (wire.logit_bias_size() > scheduling::kMaxLogitBias) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.sampling.logit_bias has ", wire.logit_bias_size(),
        " tokens, it may have at most ", scheduling::kMaxLogitBias));
  }
  std::vector<scheduling::LogitBias> biases;
  biases.reserve(static_cast<size_t>(wire.logit_bias_size()));
  for (const v1::LogitBias& b : wire.logit_bias()) {
    if (b.token() >= static_cast<uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence.sampling.logit_bias has token ", b.token(),
                       ", the vocabulary has ", vocab_size));
    }
    biases.push_back({static_cast<TokenId>(b.token()), b.bias()});
  }
  std::sort(biases.begin(), biases.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  return biases;
}

absl::StatusOr<scheduling::SamplingParams> CheckedSampling(
    const v1::ResolvedSampling& wire, int32_t vocab_size) {
  scheduling::SamplingParams sampling;
  sampling.temperature = wire.temperature();
  sampling.top_k =
      static_cast<int32_t>(std::min<uint32_t>(wire.top_k(), INT32_MAX));
  sampling.top_p = wire.top_p();
  sampling.min_p = wire.min_p();
  sampling.repetition_penalty = wire.repetition_penalty();
  sampling.presence_penalty = wire.presence_penalty();
  sampling.frequency_penalty = wire.frequency_penalty();
  sampling.seed = wire.seed();
  BATON_ASSIGN_OR_RETURN(sampling.logit_bias, CheckedBias(wire, vocab_size));
  if (!wire.allowed_token_ids().empty()) {
    BATON_ASSIGN_OR_RETURN(const std::vector<TokenId> allowed,
                           CheckedTokens(wire.allowed_token_ids(), vocab_size,
                                         "sampling.allowed_token_ids"));
    sampling.allowed =
        std::make_shared<scheduling::TokenMask>(vocab_size, allowed);
  }
  if (!wire.allowed_mask().empty()) {
    absl::StatusOr<scheduling::TokenMask> mask =
        scheduling::TokenMask::FromBytes(vocab_size, wire.allowed_mask());
    if (!mask.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "sequence.sampling.allowed_mask ", mask.status().message()));
    }
    sampling.allowed =
        std::make_shared<scheduling::TokenMask>(*std::move(mask));
  }
  BATON_RETURN_IF_ERROR(scheduling::Validate(sampling));
  return sampling;
}

absl::StatusOr<scheduling::StopParams> CheckedStop(const v1::SequenceSpec& spec,
                                                   uint32_t num_output,
                                                   int32_t vocab_size) {
  if (spec.max_output_tokens() <= num_output ||
      spec.max_output_tokens() > kMaxOutputTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.max_output_tokens is ", spec.max_output_tokens(),
        ", it must be more than the ", num_output,
        " output tokens there are and at most ", kMaxOutputTokens));
  }
  if (spec.min_output_tokens() > spec.max_output_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.min_output_tokens is ", spec.min_output_tokens(),
        ", it must be at most max_output_tokens, ", spec.max_output_tokens()));
  }
  // Of so many, there may be none left to sample.
  if (spec.min_output_tokens() > 0 &&
      spec.stop_token_ids_size() >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.stop_token_ids has ", spec.stop_token_ids_size(),
        " tokens, with min_output_tokens it must be fewer than the vocabulary",
        " has, ", vocab_size));
  }
  scheduling::StopParams stop;
  stop.max_output_tokens = static_cast<int32_t>(spec.max_output_tokens());
  stop.min_output_tokens = static_cast<int32_t>(spec.min_output_tokens());
  BATON_ASSIGN_OR_RETURN(
      stop.stop_token_ids,
      CheckedTokens(spec.stop_token_ids(), vocab_size, "stop_token_ids"));
  return stop;
}

absl::StatusOr<scheduling::Urgency> CheckedUrgency(
    const v1::SequenceSpec& spec) {
  const v1::LatencyTarget& target = spec.target();
  if (target.ttft_ms() > scheduling::kMaxTargetMs ||
      target.itl_ms() > scheduling::kMaxTargetMs) {
    return absl::InvalidArgumentError(
        "sequence.target has a time of more than a day");
  }
  if (!v1::RequestClass_IsValid(spec.request_class())) {
    return absl::InvalidArgumentError(absl::StrCat("sequence.request_class is ",
                                                   spec.request_class(),
                                                   ", there is no such class"));
  }
  if (spec.priority() < -scheduling::kMaxPriority ||
      spec.priority() > scheduling::kMaxPriority) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.priority is ", spec.priority(), ", it must be in [-",
        scheduling::kMaxPriority, ", ", scheduling::kMaxPriority, "]"));
  }
  scheduling::Urgency urgency;
  if (spec.request_class() == v1::REQUEST_CLASS_BATCH) {
    urgency.request_class = scheduling::RequestClass::kBatch;
  }
  urgency.priority = spec.priority();
  urgency.ttft_target_seconds = target.ttft_ms() / 1e3;
  urgency.itl_target_seconds = target.itl_ms() / 1e3;
  return urgency;
}

// Its place among `adapters`.
absl::StatusOr<int32_t> CheckedAdapter(
    const std::string& identity,
    absl::Span<const engine::AdapterInfo> adapters) {
  if (identity.empty()) return scheduling::kNoAdapter;
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].identity == identity) return static_cast<int32_t>(i);
  }
  return absl::NotFoundError(absl::StrCat("sequence.adapter is ",
                                          absl::CHexEscape(identity),
                                          ", which this worker does not have"));
}

absl::Status CheckPromptLogprobs(const v1::SequenceSpec& spec) {
  if (!spec.has_prompt_logprobs()) return absl::OkStatus();
  const v1::WantedPromptLogprobs& wanted = spec.prompt_logprobs();
  if (wanted.first() < 1 || wanted.first() >= spec.prompt_length()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.prompt_logprobs.first is ", wanted.first(),
        ", it must be at least 1 and less than sequence.prompt_length, ",
        spec.prompt_length()));
  }
  if (wanted.top() > uint32_t{scheduling::kMaxTopLogprobs}) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.prompt_logprobs.top is ", wanted.top(),
                     ", it must be at most ", scheduling::kMaxTopLogprobs));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<scheduling::Sequence>> MakeSequence(
    SequenceId id, const v1::SequenceSpec& spec, int32_t vocab_size,
    absl::Span<const engine::AdapterInfo> adapters) {
  BATON_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                         CheckedTokens(spec.tokens(), vocab_size, "tokens"));
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  if (spec.prompt_length() < 1 || spec.prompt_length() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.prompt_length is ", spec.prompt_length(),
                     ", it must be between 1 and the ", count, " tokens"));
  }
  BATON_ASSIGN_OR_RETURN(
      scheduling::StopParams stop,
      CheckedStop(spec, count - spec.prompt_length(), vocab_size));
  BATON_ASSIGN_OR_RETURN(scheduling::SamplingParams sampling,
                         CheckedSampling(spec.sampling(), vocab_size));
  BATON_RETURN_IF_ERROR(scheduling::Validate(sampling, stop));
  if (spec.top_logprobs() > uint32_t{scheduling::kMaxTopLogprobs}) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.top_logprobs is ", spec.top_logprobs(),
                     ", it must be at most ", scheduling::kMaxTopLogprobs));
  }
  if (!spec.traceparent().empty() &&
      !ParseTraceparent(spec.traceparent()).has_value()) {
    return absl::InvalidArgumentError(
        "sequence.traceparent is not a W3C trace context");
  }
  if (spec.cache_salt().size() > scheduling::kMaxCacheSaltBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.cache_salt has ", spec.cache_salt().size(),
        " bytes, it may have at most ", scheduling::kMaxCacheSaltBytes));
  }
  BATON_ASSIGN_OR_RETURN(const scheduling::Urgency urgency,
                         CheckedUrgency(spec));
  BATON_ASSIGN_OR_RETURN(const int32_t adapter,
                         CheckedAdapter(spec.adapter(), adapters));
  BATON_RETURN_IF_ERROR(CheckPromptLogprobs(spec));
  auto sequence = std::make_unique<scheduling::Sequence>(
      id, std::move(tokens), static_cast<int32_t>(spec.prompt_length()),
      std::move(sampling), std::move(stop),
      static_cast<int32_t>(spec.top_logprobs()), urgency, spec.cache_salt(),
      adapter);
  if (spec.has_prompt_logprobs()) {
    sequence->WantPromptLogprobs(
        static_cast<int32_t>(spec.prompt_logprobs().first()),
        static_cast<int32_t>(spec.prompt_logprobs().top()));
  }
  return sequence;
}

absl::Time DeadlineOf(const v1::SequenceSpec& spec, absl::Time now) {
  constexpr absl::Duration kDefault = absl::Minutes(10);
  return now + (spec.deadline_ms() == 0
                    ? kDefault
                    : absl::Milliseconds(spec.deadline_ms()));
}

}  // namespace baton::worker
