#include "router/request_validation.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"

namespace baton::router {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has ", id.size(), " characters, at most ",
                     kMaxRequestIdBytes, " are allowed"));
  }
  if (!std::all_of(id.begin(), id.end(),
                   [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return absl::InvalidArgumentError(
        "request_id may hold printable ASCII characters only");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> TakeTokenIds(const v1::TokenIds& ids,
                                                  int32_t vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(ids.ids_size());
  for (uint32_t id : ids.ids()) {
    if (id >= static_cast<uint32_t>(vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("token_ids has ", id, " at index ", tokens.size(),
                       "; the vocabulary has ", vocab_size, " tokens"));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

absl::StatusOr<std::vector<TokenId>> MakePrompt(
    const v1::GenerateRequest& request, const ServedModel& model) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText: {
      if (request.text().empty()) {
        return absl::InvalidArgumentError("text is empty");
      }
      absl::StatusOr<std::vector<TokenId>> tokens =
          model.tokenizer->Encode(request.text());
      if (!tokens.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("text: ", tokens.status().message()));
      }
      if (tokens->empty()) {
        return absl::InvalidArgumentError("text has no tokens");
      }
      // A tokenizer may know more tokens than the model was built for.
      for (TokenId id : *tokens) {
        if (id >= model.vocab_size) {
          return absl::InvalidArgumentError(
              absl::StrCat("text has token ", id, "; the model has ",
                           model.vocab_size, " tokens"));
        }
      }
      return tokens;
    }
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) {
        return absl::InvalidArgumentError("token_ids is empty");
      }
      return TakeTokenIds(request.token_ids(), model.vocab_size);
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError(
      "prompt is missing: give text or token_ids");
}

absl::StatusOr<scheduling::SamplingParams> MakeSampling(
    const v1::SamplingParams& given,
    const scheduling::SamplingParams& defaults) {
  scheduling::SamplingParams p = defaults;
  if (given.has_temperature()) p.temperature = given.temperature();
  if (given.has_top_k()) {
    if (given.top_k() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("top_k is ", given.top_k(), ", it must be at most ",
                       std::numeric_limits<int32_t>::max()));
    }
    p.top_k = static_cast<int32_t>(given.top_k());
  }
  if (given.has_top_p()) p.top_p = given.top_p();
  if (given.has_min_p()) p.min_p = given.min_p();
  if (given.has_repetition_penalty()) {
    p.repetition_penalty = given.repetition_penalty();
  }
  if (given.has_presence_penalty()) {
    p.presence_penalty = given.presence_penalty();
  }
  if (given.has_frequency_penalty()) {
    p.frequency_penalty = given.frequency_penalty();
  }
  BATON_RETURN_IF_ERROR(scheduling::Validate(p));
  return p;
}

// How many output tokens the request gets.
absl::StatusOr<int32_t> OutputTokens(const v1::GenerateRequest& request,
                                     int64_t prompt_tokens,
                                     const RequestLimits& limits) {
  if (request.has_max_tokens() && request.max_tokens() == 0) {
    return absl::InvalidArgumentError("max_tokens is 0, it must be at least 1");
  }
  const int64_t room = limits.max_context - prompt_tokens;
  if (room < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt has ", prompt_tokens, " tokens; the context is ",
        limits.max_context,
        " tokens, of which at least one must be left for the answer"));
  }
  int64_t tokens = room;
  if (limits.max_output_tokens > 0) {
    tokens = std::min<int64_t>(tokens, limits.max_output_tokens);
  }
  if (request.has_max_tokens()) {
    tokens = std::min<int64_t>(tokens, request.max_tokens());
  }
  return static_cast<int32_t>(tokens);
}

}  // namespace

absl::StatusOr<scheduling::RequestSpec> MakeRequestSpec(
    const v1::GenerateRequest& request, const ServedModel& model,
    const RequestLimits& limits, absl::FunctionRef<uint64_t()> draw) {
  if (!request.model().empty() && request.model() != model.name) {
    return absl::NotFoundError(absl::StrCat("model \"", request.model(),
                                            "\" is not served here; \"",
                                            model.name, "\" is"));
  }
  BATON_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  scheduling::RequestSpec spec;
  spec.id = request.request_id().empty() ? absl::StrFormat("gen-%016x", draw())
                                         : request.request_id();
  BATON_ASSIGN_OR_RETURN(
      spec.sampling, MakeSampling(request.sampling(), model.default_sampling));
  spec.sampling.seed =
      request.sampling().has_seed() ? request.sampling().seed() : draw();
  BATON_ASSIGN_OR_RETURN(spec.prompt, MakePrompt(request, model));
  BATON_ASSIGN_OR_RETURN(
      spec.stop.max_output_tokens,
      OutputTokens(request, static_cast<int64_t>(spec.prompt.size()), limits));
  if (!request.ignore_eos()) spec.stop.stop_token_ids = model.eos_token_ids;
  return spec;
}

}  // namespace baton::router
