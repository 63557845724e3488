#include "router/request_validation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "router/chat_prompt.h"
#include "router/harmony/harmony_stream.h"
#include "router/invalid_field.h"

namespace baton::router {
namespace {

using scheduling::kMaxPriority;
static_assert(kMaxKeyPriority == kMaxPriority);
using scheduling::kMaxTargetMs;

constexpr size_t kMaxRequestIdBytes = 128;
constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxStopTokens = 64;
constexpr size_t kMaxUserBytes = 256;
constexpr size_t kMaxCacheSaltBytes = 256;

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id",
                        absl::StrCat("has ", id.size(), " characters, at most ",
                                     kMaxRequestIdBytes, " are allowed"));
  }
  if (!std::all_of(id.begin(), id.end(),
                   [](unsigned char c) { return absl::ascii_isprint(c); })) {
    return InvalidField("request_id",
                        "may hold printable ASCII characters only");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenId>> TakeTokenIds(const v1::TokenIds& ids,
                                                  int32_t vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(ids.ids_size());
  for (uint32_t id : ids.ids()) {
    if (id >= static_cast<uint32_t>(vocab_size)) {
      return InvalidField(
          "token_ids",
          absl::StrCat("has ", id, " at index ", tokens.size(),
                       "; the vocabulary has ", vocab_size, " tokens"));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

// The tokens of `text`, which came in `field`.
absl::StatusOr<std::vector<TokenId>> Tokenize(const char* field,
                                              const std::string& text,
                                              const EncodeOptions& options,
                                              const ServedModel& model) {
  absl::StatusOr<std::vector<TokenId>> tokens =
      model.tokenizer->Encode(text, options);
  if (!tokens.ok()) {
    return WithField(field, absl::InvalidArgumentError(absl::StrCat(
                                field, ": ", tokens.status().message())));
  }
  if (tokens->empty()) return InvalidField(field, "has no tokens");
  // A tokenizer may know more tokens than the model was built for.
  for (TokenId id : *tokens) {
    if (id >= model.vocab_size) {
      return InvalidField(field,
                          absl::StrCat("has token ", id, "; the model has ",
                                       model.vocab_size, " tokens"));
    }
  }
  return tokens;
}

// How the answer begins behind this prompt of a conversation.
void FindBeginning(const std::string& text, const v1::ChatPrompt& chat,
                   const ServedModel& model, PreparedRequest* prepared) {
  if (model.harmony) {
    prepared->harmony_opening = HarmonyOpening(text);
    if (*prepared->harmony_opening == kHarmonyRole) {
      prepared->reasoning = ReasoningStart::kHarmony;
    }
  } else if (model.reasoning) {
    prepared->reasoning = chat.continue_final_message()
                              ? FindReasoningGoingOn(text)
                              : FindReasoningStart(text);
  }
}

// Of conversations, also how the answer begins.
absl::StatusOr<std::vector<TokenId>> MakePrompt(
    const v1::GenerateRequest& request, const ServedModel& model,
    absl::Time wall_time, PreparedRequest* prepared) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) return InvalidField("text", "is empty");
      return Tokenize("text", request.text(), {}, model);
    case v1::GenerateRequest::kTokenIds:
      if (request.token_ids().ids().empty()) {
        return InvalidField("token_ids", "is empty");
      }
      return TakeTokenIds(request.token_ids(), model.vocab_size);
    case v1::GenerateRequest::kChat: {
      BATON_ASSIGN_OR_RETURN(const std::string text,
                             RenderChat(request.chat(), model, wall_time));
      FindBeginning(text, request.chat(), model, prepared);
      // The template writes the special tokens itself.
      return Tokenize("messages", text, {.add_special_tokens = false}, model);
    }
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return WithField("prompt",
                   absl::InvalidArgumentError(
                       "prompt is missing: give text, token_ids or chat"));
}

absl::StatusOr<std::vector<scheduling::LogitBias>> MakeLogitBias(
    const google::protobuf::Map<uint32_t, float>& given, int32_t vocab_size) {
  std::vector<scheduling::LogitBias> bias;
  bias.reserve(given.size());
  for (const auto& [token, value] : given) {
    if (token >= static_cast<uint32_t>(vocab_size)) {
      return InvalidField("logit_bias", absl::StrCat("has token ", token,
                                                     "; the vocabulary has ",
                                                     vocab_size, " tokens"));
    }
    bias.push_back({.token = static_cast<TokenId>(token), .bias = value});
  }
  std::sort(bias.begin(), bias.end(),
            [](const auto& a, const auto& b) { return a.token < b.token; });
  return bias;
}

// Null: all.
absl::StatusOr<std::shared_ptr<const scheduling::TokenMask>> MakeAllowed(
    const google::protobuf::RepeatedField<uint32_t>& given,
    int32_t vocab_size) {
  if (given.empty()) return nullptr;
  std::vector<TokenId> tokens;
  tokens.reserve(given.size());
  for (const uint32_t token : given) {
    if (token >= static_cast<uint32_t>(vocab_size)) {
      return InvalidField(
          "allowed_token_ids",
          absl::StrCat("has ", token, " at index ", tokens.size(),
                       "; the vocabulary has ", vocab_size, " tokens"));
    }
    tokens.push_back(static_cast<TokenId>(token));
  }
  return std::make_shared<scheduling::TokenMask>(vocab_size, tokens);
}

absl::StatusOr<scheduling::SamplingParams> MakeSampling(
    const v1::SamplingParams& given, const scheduling::SamplingParams& defaults,
    int32_t vocab_size) {
  scheduling::SamplingParams p = defaults;
  if (given.has_temperature()) p.temperature = given.temperature();
  if (given.has_top_k()) {
    if (given.top_k() > std::numeric_limits<int32_t>::max()) {
      return InvalidField(
          "top_k", absl::StrCat("is ", given.top_k(), ", it must be at most ",
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
  BATON_ASSIGN_OR_RETURN(p.logit_bias,
                         MakeLogitBias(given.logit_bias(), vocab_size));
  BATON_ASSIGN_OR_RETURN(p.allowed,
                         MakeAllowed(given.allowed_token_ids(), vocab_size));
  if (absl::Status valid = scheduling::Validate(p); !valid.ok()) {
    // The message starts with the field's name.
    const absl::string_view message = valid.message();
    return WithField(message.substr(0, message.find(' ')), valid);
  }
  return p;
}

bool IsPromptOnly(const v1::GenerateRequest& request) {
  return request.has_max_tokens() && request.max_tokens() == 0;
}

// How many output tokens the request gets.
absl::StatusOr<int32_t> OutputTokens(const v1::GenerateRequest& request,
                                     int64_t prompt_tokens,
                                     const RequestLimits& limits) {
  const bool prompt_only = IsPromptOnly(request);
  const int64_t room = limits.max_context - prompt_tokens;
  if (room < (prompt_only ? 0 : 1)) {
    return InvalidField(
        "prompt",
        absl::StrCat("has ", prompt_tokens, " tokens; the context is ",
                     limits.max_context, " tokens",
                     prompt_only ? ""
                                 : ", of which at least one must be left for "
                                   "the answer"));
  }
  // Whoever computes a prompt samples what comes after it.
  if (prompt_only) return 1;
  int64_t tokens = room;
  if (limits.max_output_tokens > 0) {
    tokens = std::min<int64_t>(tokens, limits.max_output_tokens);
  }
  if (request.has_max_tokens()) {
    tokens = std::min<int64_t>(tokens, request.max_tokens());
  }
  return static_cast<int32_t>(tokens);
}

absl::Status TakeStop(const v1::GenerateRequest& request,
                      const ServedModel& model, PreparedRequest* prepared) {
  if (request.stop_size() > kMaxStopStrings) {
    return InvalidField(
        "stop", absl::StrCat("has ", request.stop_size(), " strings, at most ",
                             kMaxStopStrings, " are allowed"));
  }
  for (int i = 0; i < request.stop_size(); ++i) {
    const std::string& stop = request.stop(i);
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return InvalidField(
          "stop",
          absl::StrCat("has a string of ", stop.size(), " bytes at index ", i,
                       ", it must have 1 to ", kMaxStopBytes));
    }
    prepared->answer.stop.push_back(stop);
  }
  if (request.stop_token_ids_size() > kMaxStopTokens) {
    return InvalidField(
        "stop_token_ids",
        absl::StrCat("has ", request.stop_token_ids_size(), " tokens, at most ",
                     kMaxStopTokens, " are allowed"));
  }
  std::vector<TokenId>& ids = prepared->spec.stop.stop_token_ids;
  if (!request.ignore_eos()) ids = model.eos_token_ids;
  for (uint32_t id : request.stop_token_ids()) {
    if (id >= static_cast<uint32_t>(model.vocab_size)) {
      return InvalidField("stop_token_ids",
                          absl::StrCat("has ", id, "; the vocabulary has ",
                                       model.vocab_size, " tokens"));
    }
    ids.push_back(static_cast<TokenId>(id));
  }
  prepared->answer.prompt_only = IsPromptOnly(request);
  const int32_t room =
      prepared->answer.prompt_only ? 0 : prepared->spec.stop.max_output_tokens;
  if (request.min_tokens() > static_cast<uint32_t>(room)) {
    return InvalidField("min_tokens",
                        absl::StrCat("is ", request.min_tokens(),
                                     ", the answer has room for ", room));
  }
  prepared->spec.stop.min_output_tokens =
      static_cast<int32_t>(request.min_tokens());
  return WithField(
      "allowed_token_ids",
      scheduling::Validate(prepared->spec.sampling, prepared->spec.stop));
}

// Where the answer goes on with a message, that may only be one of the kind
// that the format wants.
absl::Status CheckFitsHarmony(const v1::ResponseFormat& format,
                              const PreparedRequest& prepared) {
  if (!prepared.harmony_opening.has_value() || !format.reasoning() ||
      prepared.reasoning == ReasoningStart::kHarmony) {
    return absl::OkStatus();
  }
  const HarmonyStream goes_on(*prepared.harmony_opening, {});
  if (!format.has_tool_calls() && goes_on.saying()) return absl::OkStatus();
  return InvalidField(FormatName(format),
                      "cannot be asked for where the prompt has begun, or "
                      "leaves out, the message that it is to be of");
}

absl::Status TakeFormat(const v1::GenerateRequest& request,
                        const ServedModel& model, const RequestLimits& limits,
                        PreparedRequest* prepared) {
  if (!request.has_response_format()) return absl::OkStatus();
  if (!limits.takes_grammars) {
    return WithField("response_format",
                     absl::UnavailableError(
                         "response_format is not heeded by all workers: some "
                         "are of an earlier version"));
  }
  const v1::ResponseFormat& format = request.response_format();
  BATON_RETURN_IF_ERROR(CheckFitsHarmony(format, *prepared));
  absl::StatusOr<std::shared_ptr<const scheduling::Grammar>> grammar =
      limits.grammars == nullptr
          ? MakeGrammar(format, model.tool_calls, prepared->reasoning)
          : limits.grammars->Get(format, model.tool_calls, prepared->reasoning);
  if (!grammar.ok()) {
    return InvalidField(FormatName(format), grammar.status().message());
  }
  prepared->spec.grammar = *std::move(grammar);
  prepared->answer.format = FormatName(format);
  return absl::OkStatus();
}

absl::Status TakeLogprobs(const v1::GenerateRequest& request,
                          PreparedRequest* prepared) {
  prepared->answer.logprobs = request.has_top_logprobs();
  if (request.top_logprobs() > scheduling::kMaxTopLogprobs) {
    return InvalidField(
        "top_logprobs",
        absl::StrCat("is ", request.top_logprobs(), ", it must be at most ",
                     scheduling::kMaxTopLogprobs));
  }
  prepared->spec.top_logprobs = static_cast<int32_t>(request.top_logprobs());
  return absl::OkStatus();
}

// REQUIRES: the prompt is there.
absl::Status TakePromptLogprobs(const v1::GenerateRequest& request,
                                scheduling::RequestSpec* spec) {
  if (!request.has_prompt_logprobs()) return absl::OkStatus();
  const uint32_t top = request.prompt_logprobs();
  if (top > scheduling::kMaxTopLogprobs) {
    return InvalidField("prompt_logprobs",
                        absl::StrCat("is ", top, ", it must be at most ",
                                     scheduling::kMaxTopLogprobs));
  }
  spec->prompt_logprobs = static_cast<int32_t>(top);
  const int64_t count = NumPromptLogprobs(*spec);
  if (count > scheduling::kMaxPromptLogprobs) {
    return InvalidField(
        "prompt_logprobs",
        absl::StrCat("of a prompt of ", spec->prompt.size(), " tokens, with ",
                     top, " of the likeliest each, are ", count, ", at most ",
                     scheduling::kMaxPromptLogprobs, " are allowed"));
  }
  return absl::OkStatus();
}

absl::Status TakeService(const v1::GenerateRequest& request,
                         const ClassTargets& targets, const KeyRights& rights,
                         AnswerOptions* answer) {
  const v1::LatencyTarget& target = request.target();
  if (target.ttft_ms() > kMaxTargetMs || target.itl_ms() > kMaxTargetMs) {
    return InvalidField("target", "has a time of more than a day");
  }
  if (!v1::RequestClass_IsValid(request.request_class())) {
    return InvalidField("request_class",
                        absl::StrCat("is ", request.request_class(),
                                     ", there is no such class"));
  }
  const bool batch =
      rights.batch_only || request.request_class() == v1::REQUEST_CLASS_BATCH;
  answer->request_class =
      batch ? RequestClass::kBatch : RequestClass::kInteractive;
  const LatencyTargets& of_class = answer->request_class == RequestClass::kBatch
                                       ? targets.batch
                                       : targets.interactive;
  answer->ttft_target = target.ttft_ms() == 0
                            ? of_class.ttft
                            : absl::Milliseconds(target.ttft_ms());
  answer->itl_target =
      target.itl_ms() == 0 ? of_class.itl : absl::Milliseconds(target.itl_ms());
  if (request.priority() < -kMaxPriority || request.priority() > kMaxPriority) {
    return InvalidField(
        "priority",
        absl::StrCat("is ", request.priority(), ", it must be in [-",
                     kMaxPriority, ", ", kMaxPriority, "]"));
  }
  answer->priority =
      std::min(request.priority(), rights.max_priority.value_or(kMaxPriority));
  if (request.user().size() > kMaxUserBytes) {
    return InvalidField(
        "user", absl::StrCat("has ", request.user().size(), " bytes, at most ",
                             kMaxUserBytes, " are allowed"));
  }
  answer->user = request.user();
  answer->chat = request.has_chat();
  return absl::OkStatus();
}

// The model that the request asks for: an adapter's name stands for the model
// with that.
absl::Status TakeModel(const v1::GenerateRequest& request,
                       const ServedModel& model, const AdapterNames* adapters,
                       const KeyRights& rights, PreparedRequest* prepared) {
  const std::string& name = request.model();
  BATON_RETURN_IF_ERROR(CheckModelName(name, model, adapters, rights));
  if (name.empty() || name == model.name) return absl::OkStatus();
  prepared->answer.adapter = name;
  prepared->spec.adapter = adapters->at(name);
  return absl::OkStatus();
}

}  // namespace

int64_t NumPromptLogprobs(const scheduling::RequestSpec& spec) {
  if (!spec.prompt_logprobs.has_value()) return 0;
  return (static_cast<int64_t>(spec.prompt.size()) - 1) *
         (1 + *spec.prompt_logprobs);
}

absl::Status CheckModelName(absl::string_view name, const ServedModel& model,
                            const AdapterNames* adapters,
                            const KeyRights& rights) {
  constexpr size_t kShown = 200;
  const bool is_model = name.empty() || name == model.name;
  if (is_model) name = model.name;
  const bool served =
      is_model || (adapters != nullptr && adapters->contains(name));
  if (served && rights.HasModel(name)) return absl::OkStatus();
  std::string error =
      absl::StrCat("model \"", name.substr(0, kShown), "\" is not served here");
  if (!rights.models.empty()) {
    absl::StrAppend(&error, " to this API key");
  } else {
    absl::StrAppend(&error, "; \"", model.name, "\" is");
    if (adapters != nullptr && !adapters->empty()) {
      absl::StrAppend(&error, ", and ", adapters->size(), " adapters of it");
    }
  }
  return WithField("model", absl::NotFoundError(error));
}

absl::StatusOr<PreparedRequest> PrepareRequest(
    const v1::GenerateRequest& request, const ServedModel& model,
    const RequestLimits& limits, absl::FunctionRef<uint64_t()> draw) {
  static const auto* const everything = new KeyRights;
  const KeyRights& rights =
      limits.rights == nullptr ? *everything : *limits.rights;
  PreparedRequest prepared;
  BATON_RETURN_IF_ERROR(
      TakeModel(request, model, limits.adapters, rights, &prepared));
  BATON_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  scheduling::RequestSpec& spec = prepared.spec;
  spec.id = request.request_id().empty() ? absl::StrFormat("gen-%016x", draw())
                                         : request.request_id();
  BATON_ASSIGN_OR_RETURN(
      spec.sampling, MakeSampling(request.sampling(), model.default_sampling,
                                  model.vocab_size));
  spec.sampling.seed =
      request.sampling().has_seed() ? request.sampling().seed() : draw();
  // Tokenizing is what costs: last, but for what depends on the prompt.
  BATON_RETURN_IF_ERROR(TakeLogprobs(request, &prepared));
  BATON_RETURN_IF_ERROR(
      TakeService(request, limits.targets, rights, &prepared.answer));
  if (request.cache_salt().size() > kMaxCacheSaltBytes) {
    return InvalidField(
        "cache_salt",
        absl::StrCat("has ", request.cache_salt().size(), " bytes, at most ",
                     kMaxCacheSaltBytes, " are allowed"));
  }
  prepared.prefix.salt = request.cache_salt();
  BATON_ASSIGN_OR_RETURN(
      spec.prompt, MakePrompt(request, model, limits.wall_time, &prepared));
  BATON_RETURN_IF_ERROR(TakePromptLogprobs(request, &spec));
  BATON_RETURN_IF_ERROR(TakeFormat(request, model, limits, &prepared));
  BATON_ASSIGN_OR_RETURN(
      spec.stop.max_output_tokens,
      OutputTokens(request, static_cast<int64_t>(spec.prompt.size()), limits));
  BATON_RETURN_IF_ERROR(TakeStop(request, model, &prepared));
  return prepared;
}

}  // namespace baton::router
