// What tells the endpoints that answer prompts apart: how a request of each is
// read, and how its answers and errors look. Pure; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/http/answer_items.h"
#include "router/http/http_message.h"
#include "router/http/openai_request.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

enum class Endpoint : uint8_t { kCompletions, kChat, kResponses, kMessages };

// "completions", "chat", "responses" or "messages".
const char* EndpointName(Endpoint endpoint);

// The one at `path`, if there is one.
std::optional<Endpoint> EndpointOf(absl::string_view path);

// "Bearer KEY", as clients of the OpenAI API say it, or those of Anthropic's
// ("x-api-key: KEY"); empty without a key.
std::string AuthorizationOf(const Request& request);

// What the ids of its answers begin with, unless a client gave one.
const char* IdPrefix(Endpoint endpoint);

absl::StatusOr<ApiRequest> ParseRequest(Endpoint endpoint,
                                        absl::string_view body);

// What a stream says when there is nothing to say: clients pass over it.
absl::string_view QuietText(Endpoint endpoint);

// Writes the answer; null: it is no answer of items.
std::unique_ptr<AnswerItems> ItemsOf(Endpoint endpoint, const AnswerHead& head,
                                     const ApiRequest& api);

// A status that is not the parser's, with the names that the endpoint's clients
// know.
absl::Status WithApiField(const absl::Status& status, Endpoint endpoint);

// An error as the endpoint's clients read it.
Response ErrorOf(Endpoint endpoint, const absl::Status& status,
                 std::optional<absl::Duration> retry_after,
                 const std::string& id);

}  // namespace baton::router::http
