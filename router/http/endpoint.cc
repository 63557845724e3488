#include "router/http/endpoint.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/http/messages_request.h"
#include "router/http/messages_writer.h"
#include "router/http/openai_error.h"
#include "router/http/responses_request.h"
#include "router/http/responses_writer.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

struct EndpointTraits {
  absl::string_view path;
  const char* name;
  const char* id_prefix;
};

// By Endpoint.
constexpr EndpointTraits kEndpoints[] = {
    {"/v1/completions", "completions", "cmpl-"},
    {"/v1/chat/completions", "chat", "chatcmpl-"},
    {"/v1/responses", "responses", "resp_"},
    {"/v1/messages", "messages", "msg_"},
};

const EndpointTraits& TraitsOf(Endpoint endpoint) {
  return kEndpoints[static_cast<size_t>(endpoint)];
}

}  // namespace

const char* EndpointName(Endpoint endpoint) { return TraitsOf(endpoint).name; }

const char* IdPrefix(Endpoint endpoint) { return TraitsOf(endpoint).id_prefix; }

std::optional<Endpoint> EndpointOf(absl::string_view path) {
  for (size_t i = 0; i < std::size(kEndpoints); ++i) {
    if (path == kEndpoints[i].path) return static_cast<Endpoint>(i);
  }
  return std::nullopt;
}

std::string AuthorizationOf(const Request& request) {
  const absl::string_view authorization = request.Header("authorization");
  const absl::string_view key = request.Header("x-api-key");
  return authorization.empty() && !key.empty() ? absl::StrCat("Bearer ", key)
                                               : std::string(authorization);
}

absl::Status WithApiField(const absl::Status& status, Endpoint endpoint) {
  // OpenAI's API speaks of one prompt where ours has three kinds.
  constexpr FieldAlias kAliases[] = {
      {.field = "text", .alias = "prompt", .alone = true},
      {.field = "token_ids", .alias = "prompt", .alone = true},
      {.field = "prompt_logprobs", .alias = "logprobs", .alone = true}};
  switch (endpoint) {
    case Endpoint::kCompletions:
    case Endpoint::kChat:
      break;
    case Endpoint::kResponses:
      return WithResponsesField(status);
    case Endpoint::kMessages:
      return WithMessagesField(status);
  }
  return WithFieldAlias(status, kAliases);
}

Response ErrorOf(Endpoint endpoint, const absl::Status& status,
                 std::optional<absl::Duration> retry_after,
                 const std::string& id) {
  Response response = ErrorResponse(status, retry_after);
  // One that is too long is what the error is about.
  if (id.size() <= kMaxShownIdBytes) {
    response.headers.emplace_back("x-request-id", id);
  }
  return endpoint == Endpoint::kMessages ? AsMessagesError(std::move(response))
                                         : response;
}

absl::string_view QuietText(Endpoint endpoint) {
  // The one is an event of that API, the other a comment of all streams of
  // events.
  return endpoint == Endpoint::kMessages
             ? "event: ping\ndata: {\"type\": \"ping\"}\n\n"
             : ": ping\n\n";
}

std::unique_ptr<AnswerItems> ItemsOf(Endpoint endpoint, const AnswerHead& head,
                                     const ApiRequest& api) {
  switch (endpoint) {
    case Endpoint::kCompletions:
    case Endpoint::kChat:
      break;
    case Endpoint::kResponses:
      return std::make_unique<ResponsesWriter>(head, api.echoed_fields);
    case Endpoint::kMessages:
      return std::make_unique<MessagesWriter>(head);
  }
  return nullptr;
}

absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint,
                                        absl::string_view body) {
  switch (endpoint) {
    case Endpoint::kCompletions:
      return ParseCompletionRequest(body);
    case Endpoint::kChat:
      break;
    case Endpoint::kResponses:
      return ParseResponsesRequest(body);
    case Endpoint::kMessages:
      return ParseMessagesRequest(body);
  }
  return ParseChatRequest(body);
}

}  // namespace baton::router::http
