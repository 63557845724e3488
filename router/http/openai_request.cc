#include "router/http/openai_request.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/http/json_fields.h"
#include "router/http/response_format.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

// Answers of one call: prompts times n.
constexpr int64_t kMaxAnswers = 128;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxTopLogprobs = 20;
constexpr size_t kMaxLogitBias = 1024;
// What OpenAI's API takes for completions that do not say.
constexpr uint32_t kDefaultCompletionTokens = 16;

absl::Status ReadSampling(const JsonFields& fields, v1::SamplingParams* out) {
  const auto read = [&fields](const char* name, auto set) -> absl::Status {
    BATON_ASSIGN_OR_RETURN(const std::optional<double> value,
                           fields.Number(name));
    if (value.has_value()) set(static_cast<float>(*value));
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(
      read("temperature", [&](float v) { out->set_temperature(v); }));
  BATON_RETURN_IF_ERROR(read("top_p", [&](float v) { out->set_top_p(v); }));
  BATON_RETURN_IF_ERROR(read("min_p", [&](float v) { out->set_min_p(v); }));
  BATON_RETURN_IF_ERROR(read("repetition_penalty",
                             [&](float v) { out->set_repetition_penalty(v); }));
  BATON_RETURN_IF_ERROR(
      read("presence_penalty", [&](float v) { out->set_presence_penalty(v); }));
  BATON_RETURN_IF_ERROR(read("frequency_penalty",
                             [&](float v) { out->set_frequency_penalty(v); }));
  // -1 means all, as in vLLM.
  BATON_ASSIGN_OR_RETURN(const auto top_k, fields.Int("top_k", -1, kMaxInt32));
  if (top_k.has_value()) {
    out->set_top_k(*top_k < 0 ? 0 : static_cast<uint32_t>(*top_k));
  }
  BATON_ASSIGN_OR_RETURN(const auto seed,
                         fields.Int("seed", std::numeric_limits<int64_t>::min(),
                                    std::numeric_limits<int64_t>::max()));
  if (seed.has_value()) out->set_seed(static_cast<uint64_t>(*seed));
  return absl::OkStatus();
}

absl::Status ReadLogitBias(const JsonFields& fields, v1::SamplingParams* out) {
  const json::value* value = fields.Find("logit_bias");
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_object()) {
    return InvalidField("logit_bias", absl::StrCat("must be an object, it is ",
                                                   TypeName(*value)));
  }
  const json::object& object = value->get_object();
  if (object.size() > kMaxLogitBias) {
    return InvalidField(
        "logit_bias", absl::StrCat("has ", object.size(), " entries, at most ",
                                   kMaxLogitBias, " are allowed"));
  }
  for (const auto& entry : object) {
    const absl::string_view key(entry.key().data(), entry.key().size());
    uint32_t token = 0;
    if (!absl::SimpleAtoi(key, &token)) {
      return InvalidField("logit_bias",
                          absl::StrCat("has the key \"", key.substr(0, 64),
                                       "\", which is not a token id"));
    }
    const json::value& bias = entry.value();
    if (!bias.is_number()) {
      return InvalidField(
          "logit_bias",
          absl::StrCat("of token ", token, " must be a number, it is ",
                       TypeName(bias)));
    }
    (*out->mutable_logit_bias())[token] = bias.to_number<float>();
  }
  return absl::OkStatus();
}

// Token ids of a field, if it is there.
absl::StatusOr<std::optional<std::vector<uint32_t>>> ReadIds(
    const JsonFields& fields, absl::string_view name) {
  const json::value* value = fields.Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) {
    return InvalidField(
        name, absl::StrCat("must be an array, it is ", TypeName(*value)));
  }
  std::vector<uint32_t> ids;
  for (const json::value& id : value->get_array()) {
    const std::optional<int64_t> number = WholeNumber(id);
    if (!number.has_value() || *number < 0 || *number > kMaxInt32) {
      return InvalidField(name, "must hold token ids");
    }
    ids.push_back(static_cast<uint32_t>(*number));
  }
  return ids;
}

absl::Status ReadAllowed(const JsonFields& fields, v1::SamplingParams* out) {
  BATON_ASSIGN_OR_RETURN(const auto ids, ReadIds(fields, "allowed_token_ids"));
  if (!ids.has_value()) return absl::OkStatus();
  if (ids->empty()) {
    return InvalidField("allowed_token_ids",
                        "is empty, nothing could come out");
  }
  out->mutable_allowed_token_ids()->Assign(ids->begin(), ids->end());
  return absl::OkStatus();
}

absl::Status ReadStop(const JsonFields& fields, v1::GenerateRequest* out) {
  const json::value* value = fields.Find("stop");
  if (value != nullptr && value->is_string()) {
    out->add_stop(std::string(value->get_string()));
  } else if (value != nullptr && value->is_array()) {
    for (const json::value& stop : value->get_array()) {
      if (!stop.is_string()) {
        return InvalidField("stop", absl::StrCat("must hold strings, it holds ",
                                                 TypeName(stop)));
      }
      out->add_stop(std::string(stop.get_string()));
    }
  } else if (value != nullptr) {
    return InvalidField(
        "stop", absl::StrCat("must be a string or an array of them, it is ",
                             TypeName(*value)));
  }
  BATON_ASSIGN_OR_RETURN(const auto ids, ReadIds(fields, "stop_token_ids"));
  if (ids.has_value()) {
    out->mutable_stop_token_ids()->Assign(ids->begin(), ids->end());
  }
  return absl::OkStatus();
}

// What would change the answer, and cannot be done.
absl::Status RefuseUnsupported(const JsonFields& fields) {
  for (const char* name : {"suffix", "functions", "function_call", "audio"}) {
    const json::value* value = fields.Find(name);
    if (value == nullptr) continue;
    if (value->is_string() && value->get_string().empty()) continue;
    return InvalidField(name, "is not supported");
  }
  BATON_ASSIGN_OR_RETURN(const auto beam, fields.Bool("use_beam_search"));
  if (beam.value_or(false)) {
    return InvalidField("use_beam_search", "is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadStream(const JsonFields& fields, ApiRequest* api) {
  BATON_ASSIGN_OR_RETURN(const auto stream, fields.Bool("stream"));
  api->stream = stream.value_or(false);
  const json::value* options = fields.Find("stream_options");
  if (options == nullptr) return absl::OkStatus();
  if (!api->stream) {
    return InvalidField("stream_options",
                        "is allowed only when stream is true");
  }
  if (!options->is_object()) {
    return InvalidField(
        "stream_options",
        absl::StrCat("must be an object, it is ", TypeName(*options)));
  }
  const JsonFields inner(&options->get_object(), "stream_options.");
  BATON_ASSIGN_OR_RETURN(const auto usage, inner.Bool("include_usage"));
  api->include_usage = usage.value_or(false);
  return absl::OkStatus();
}

// All that the two kinds of requests share, but for the prompt.
absl::Status ReadCommon(const JsonFields& fields, int32_t least_max_tokens,
                        ApiRequest* api, v1::GenerateRequest* out) {
  BATON_RETURN_IF_ERROR(RefuseUnsupported(fields));
  BATON_RETURN_IF_ERROR(ReadStream(fields, api));
  BATON_ASSIGN_OR_RETURN(auto model, fields.String("model"));
  if (model.has_value()) out->set_model(*std::move(model));
  BATON_RETURN_IF_ERROR(ReadSampling(fields, out->mutable_sampling()));
  BATON_RETURN_IF_ERROR(ReadLogitBias(fields, out->mutable_sampling()));
  BATON_RETURN_IF_ERROR(ReadAllowed(fields, out->mutable_sampling()));
  BATON_RETURN_IF_ERROR(ReadStop(fields, out));
  BATON_RETURN_IF_ERROR(ReadResponseFormat(fields, out));
  BATON_ASSIGN_OR_RETURN(const auto n, fields.Int("n", 1, kMaxAnswers));
  api->n = static_cast<int>(n.value_or(1));
  BATON_ASSIGN_OR_RETURN(const auto best_of,
                         fields.Int("best_of", 1, kMaxAnswers));
  if (best_of.has_value() && *best_of != api->n) {
    return InvalidField("best_of", "is supported only when it equals n");
  }
  BATON_ASSIGN_OR_RETURN(const auto max_tokens,
                         fields.Int("max_tokens", least_max_tokens, kMaxInt32));
  if (max_tokens.has_value()) {
    out->set_max_tokens(static_cast<uint32_t>(*max_tokens));
  }
  BATON_ASSIGN_OR_RETURN(const auto min_tokens,
                         fields.Int("min_tokens", 0, kMaxInt32));
  out->set_min_tokens(static_cast<uint32_t>(min_tokens.value_or(0)));
  BATON_ASSIGN_OR_RETURN(const auto ignore_eos, fields.Bool("ignore_eos"));
  out->set_ignore_eos(ignore_eos.value_or(false));
  BATON_ASSIGN_OR_RETURN(auto user, fields.String("user"));
  if (user.has_value()) out->set_user(*std::move(user));
  BATON_ASSIGN_OR_RETURN(auto cache_salt, fields.String("cache_salt"));
  if (cache_salt.has_value()) out->set_cache_salt(*std::move(cache_salt));
  BATON_ASSIGN_OR_RETURN(
      const auto priority,
      fields.Int("priority", std::numeric_limits<int32_t>::min(), kMaxInt32));
  out->set_priority(static_cast<int32_t>(priority.value_or(0)));
  return absl::OkStatus();
}

bool IsTokenArray(const json::array& array) {
  return !array.empty() && array[0].is_number();
}

absl::Status ReadTokens(const json::array& array, v1::TokenIds* out) {
  for (const json::value& id : array) {
    const std::optional<int64_t> number = WholeNumber(id);
    if (!number.has_value() || *number < 0 || *number > kMaxInt32) {
      return InvalidField("prompt",
                          absl::StrCat("must hold token ids; the entry at ",
                                       out->ids_size(), " is ", TypeName(id)));
    }
    out->add_ids(static_cast<uint32_t>(*number));
  }
  return absl::OkStatus();
}

// One element of a list of prompts: a string or a list of token ids.
absl::Status ReadPrompt(const json::value& value, v1::GenerateRequest* out) {
  if (value.is_string()) {
    out->set_text(std::string(value.get_string()));
    return absl::OkStatus();
  }
  if (value.is_array() && IsTokenArray(value.get_array())) {
    return ReadTokens(value.get_array(), out->mutable_token_ids());
  }
  return InvalidField(
      "prompt", absl::StrCat("must be a string, an array of strings, an array "
                             "of token ids or an array of such arrays; it has ",
                             TypeName(value)));
}

absl::Status ReadPrompts(const JsonFields& fields,
                         const v1::GenerateRequest& common, ApiRequest* api) {
  const json::value* prompt = fields.Find("prompt");
  if (prompt == nullptr) return InvalidField("prompt", "is missing");
  const json::array* list = prompt->if_array();
  if (list == nullptr || IsTokenArray(*list)) {
    api->prompts.push_back(common);
    return ReadPrompt(*prompt, &api->prompts.back());
  }
  if (list->empty()) return InvalidField("prompt", "is empty");
  if (static_cast<int64_t>(list->size()) * api->n > kMaxAnswers) {
    return InvalidField("prompt",
                        absl::StrCat("asks for ", list->size() * api->n,
                                     " answers (prompts times n), at most ",
                                     kMaxAnswers, " are allowed"));
  }
  for (const json::value& value : *list) {
    api->prompts.push_back(common);
    BATON_RETURN_IF_ERROR(ReadPrompt(value, &api->prompts.back()));
  }
  return absl::OkStatus();
}

// The field as JSON text; empty when absent.
std::string JsonOf(const JsonFields& fields, absl::string_view name) {
  const json::value* value = fields.Find(name);
  return value == nullptr ? "" : json::serialize(*value);
}

// How long the model is to think is a variable of templates, too. One that the
// client gave for its template is meant.
absl::StatusOr<std::string> TemplateArguments(const JsonFields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto effort, fields.String("reasoning_effort"));
  const json::value* const given = fields.Find("chat_template_kwargs");
  if (!effort.has_value() || (given != nullptr && !given->is_object())) {
    return JsonOf(fields, "chat_template_kwargs");
  }
  json::object arguments =
      given == nullptr ? json::object() : given->get_object();
  arguments.emplace("reasoning_effort", *effort);
  return json::serialize(arguments);
}

absl::Status ReadChatPrompt(const JsonFields& fields, v1::ChatPrompt* out) {
  if (fields.Find("messages") == nullptr) {
    return InvalidField("messages", "is missing");
  }
  out->set_messages(JsonOf(fields, "messages"));
  out->set_tools(JsonOf(fields, "tools"));
  out->set_documents(JsonOf(fields, "documents"));
  out->set_tool_choice(JsonOf(fields, "tool_choice"));
  BATON_ASSIGN_OR_RETURN(auto arguments, TemplateArguments(fields));
  out->set_template_arguments(std::move(arguments));
  BATON_ASSIGN_OR_RETURN(const auto prompt_wanted,
                         fields.Bool("add_generation_prompt"));
  out->set_omit_generation_prompt(!prompt_wanted.value_or(true));
  BATON_ASSIGN_OR_RETURN(const auto goes_on,
                         fields.Bool("continue_final_message"));
  if (goes_on.value_or(false) && prompt_wanted.value_or(false)) {
    return InvalidField("continue_final_message",
                        "and add_generation_prompt exclude each other");
  }
  out->set_continue_final_message(goes_on.value_or(false));
  return absl::OkStatus();
}

// As SGLang has the one, and vLLM the other.
absl::Status ReadReasoning(const JsonFields& fields, ApiRequest* api,
                           v1::GenerateRequest* out) {
  BATON_ASSIGN_OR_RETURN(const auto separate,
                         fields.Bool("separate_reasoning"));
  BATON_ASSIGN_OR_RETURN(const auto include, fields.Bool("include_reasoning"));
  api->separate_reasoning = separate.value_or(true);
  api->include_reasoning = include.value_or(true);
  if (api->separate_reasoning && out->has_response_format()) {
    out->mutable_response_format()->set_reasoning(true);
  }
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> HeaderMs(absl::string_view name,
                                  absl::string_view value) {
  uint32_t ms = 0;
  if (!absl::SimpleAtoi(value, &ms)) {
    return InvalidField(name, absl::StrCat("is \"", value.substr(0, 64),
                                           "\", it must be milliseconds"));
  }
  return ms;
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletionRequest(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  const JsonFields fields(&object);
  ApiRequest api;
  v1::GenerateRequest common;
  BATON_RETURN_IF_ERROR(
      ReadCommon(fields, /*least_max_tokens=*/0, &api, &common));
  if (!common.has_max_tokens()) common.set_max_tokens(kDefaultCompletionTokens);
  BATON_ASSIGN_OR_RETURN(const auto logprobs,
                         fields.Int("logprobs", 0, kMaxTopLogprobs));
  if (logprobs.has_value()) {
    common.set_top_logprobs(static_cast<uint32_t>(*logprobs));
  }
  BATON_ASSIGN_OR_RETURN(const auto echo, fields.Bool("echo"));
  api.echo = echo.value_or(false);
  if (api.echo && common.has_top_logprobs()) {
    common.set_prompt_logprobs(common.top_logprobs());
  }
  BATON_RETURN_IF_ERROR(ReadPrompts(fields, common, &api));
  return api;
}

absl::StatusOr<ApiRequest> ParseChatRequest(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  return ReadChatRequest(object);
}

absl::StatusOr<ApiRequest> ReadChatRequest(const json::object& body) {
  const JsonFields fields(&body);
  ApiRequest api;
  api.chat = true;
  v1::GenerateRequest common;
  BATON_RETURN_IF_ERROR(
      ReadCommon(fields, /*least_max_tokens=*/1, &api, &common));
  // The newer name wins.
  BATON_ASSIGN_OR_RETURN(const auto max_tokens,
                         fields.Int("max_completion_tokens", 1, kMaxInt32));
  if (max_tokens.has_value()) {
    common.set_max_tokens(static_cast<uint32_t>(*max_tokens));
  }
  BATON_ASSIGN_OR_RETURN(const auto logprobs, fields.Bool("logprobs"));
  BATON_ASSIGN_OR_RETURN(const auto top,
                         fields.Int("top_logprobs", 0, kMaxTopLogprobs));
  if (top.value_or(0) > 0 && !logprobs.value_or(false)) {
    return InvalidField("top_logprobs",
                        "is allowed only when logprobs is true");
  }
  if (logprobs.value_or(false)) {
    common.set_top_logprobs(static_cast<uint32_t>(top.value_or(0)));
  }
  BATON_RETURN_IF_ERROR(ReadChatPrompt(fields, common.mutable_chat()));
  BATON_RETURN_IF_ERROR(ReadTools(fields, &api.tools, &common));
  BATON_RETURN_IF_ERROR(ReadReasoning(fields, &api, &common));
  api.prompts.push_back(std::move(common));
  return api;
}

absl::Status ApplyHeaders(const Request& request, ApiRequest* api) {
  v1::LatencyTarget target;
  if (const auto value = request.Header("x-baton-ttft-ms"); !value.empty()) {
    BATON_ASSIGN_OR_RETURN(const uint32_t ms,
                           HeaderMs("x-baton-ttft-ms", value));
    target.set_ttft_ms(ms);
  }
  if (const auto value = request.Header("x-baton-itl-ms"); !value.empty()) {
    BATON_ASSIGN_OR_RETURN(const uint32_t ms,
                           HeaderMs("x-baton-itl-ms", value));
    target.set_itl_ms(ms);
  }
  v1::RequestClass request_class = v1::REQUEST_CLASS_UNSPECIFIED;
  const absl::string_view name = request.Header("x-baton-class");
  if (name == "batch") {
    request_class = v1::REQUEST_CLASS_BATCH;
  } else if (name == "interactive") {
    request_class = v1::REQUEST_CLASS_INTERACTIVE;
  } else if (!name.empty()) {
    return InvalidField("x-baton-class",
                        absl::StrCat("is \"", name.substr(0, 64),
                                     "\", it must be interactive or batch"));
  }
  std::optional<int32_t> priority;
  if (const auto value = request.Header("x-baton-priority"); !value.empty()) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(value, &number)) {
      return InvalidField("x-baton-priority", "must be an integer");
    }
    priority = number;
  }
  for (v1::GenerateRequest& prompt : api->prompts) {
    *prompt.mutable_target() = target;
    prompt.set_request_class(request_class);
    if (priority.has_value()) prompt.set_priority(*priority);
  }
  return absl::OkStatus();
}

absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  const JsonFields fields(&object);
  TokenizeRequest request;
  BATON_ASSIGN_OR_RETURN(auto model, fields.String("model"));
  if (model.has_value()) request.prompt.set_model(*std::move(model));
  BATON_ASSIGN_OR_RETURN(auto prompt, fields.String("prompt"));
  if (prompt.has_value()) {
    request.prompt.set_text(*std::move(prompt));
  } else if (fields.Find("messages") != nullptr) {
    BATON_RETURN_IF_ERROR(
        ReadChatPrompt(fields, request.prompt.mutable_chat()));
  } else {
    return InvalidField("prompt", "is missing, and so is messages");
  }
  BATON_ASSIGN_OR_RETURN(const auto special, fields.Bool("add_special_tokens"));
  request.add_special_tokens = special.value_or(!request.prompt.has_chat());
  return request;
}

absl::StatusOr<std::vector<uint32_t>> ParseDetokenizeRequest(
    absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  const JsonFields fields(&object);
  const json::value* tokens = fields.Find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return InvalidField("tokens", "must be an array of token ids");
  }
  std::vector<uint32_t> ids;
  for (const json::value& id : tokens->get_array()) {
    const std::optional<int64_t> number = WholeNumber(id);
    if (!number.has_value() || *number < 0 || *number > kMaxInt32) {
      return InvalidField("tokens",
                          absl::StrCat("must hold token ids; the entry at ",
                                       ids.size(), " is ", TypeName(id)));
    }
    ids.push_back(static_cast<uint32_t>(*number));
  }
  return ids;
}

}  // namespace baton::router::http
