#include "worker/sequence_spec.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

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

absl::StatusOr<scheduling::SamplingParams> CheckedSampling(
    const v1::ResolvedSampling& wire) {
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
  BATON_RETURN_IF_ERROR(scheduling::Validate(sampling));
  return sampling;
}

}  // namespace

absl::StatusOr<std::unique_ptr<scheduling::Sequence>> MakeSequence(
    SequenceId id, const v1::SequenceSpec& spec, int32_t vocab_size) {
  BATON_ASSIGN_OR_RETURN(std::vector<TokenId> tokens,
                         CheckedTokens(spec.tokens(), vocab_size, "tokens"));
  const uint32_t count = static_cast<uint32_t>(tokens.size());
  if (spec.prompt_length() < 1 || spec.prompt_length() > count) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.prompt_length is ", spec.prompt_length(),
                     ", it must be between 1 and the ", count, " tokens"));
  }
  const uint32_t num_output = count - spec.prompt_length();
  if (spec.max_output_tokens() <= num_output ||
      spec.max_output_tokens() > kMaxOutputTokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence.max_output_tokens is ", spec.max_output_tokens(),
        ", it must be more than the ", num_output,
        " output tokens there are and at most ", kMaxOutputTokens));
  }
  scheduling::StopParams stop;
  stop.max_output_tokens = static_cast<int32_t>(spec.max_output_tokens());
  BATON_ASSIGN_OR_RETURN(
      stop.stop_token_ids,
      CheckedTokens(spec.stop_token_ids(), vocab_size, "stop_token_ids"));
  BATON_ASSIGN_OR_RETURN(const scheduling::SamplingParams sampling,
                         CheckedSampling(spec.sampling()));
  return std::make_unique<scheduling::Sequence>(
      id, std::move(tokens), static_cast<int32_t>(spec.prompt_length()),
      sampling, std::move(stop));
}

}  // namespace baton::worker
