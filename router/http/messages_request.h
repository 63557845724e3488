// The requests of Anthropic's Messages API, POST /v1/messages and
// /v1/messages/count_tokens: read into what they say as chat requests. Blocks
// that are not text, and tools that a server would have to run or a model would
// have to know, are refused. Other fields that chat requests have (seed,
// chat_template_kwargs, ...) mean the same here.
//
// What is said of the same turn is one message, as chat templates want it.
// Pure; any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace baton::router::http {

// InvalidArgument names the field (router/invalid_field.h).
absl::StatusOr<ApiRequest> ParseMessagesRequest(absl::string_view body);

// The prompt alone.
absl::StatusOr<TokenizeRequest> ParseCountTokensRequest(absl::string_view body);

// An error of the chat request that was made of one, with the names that its
// client knows. No index of a message: they are counted otherwise.
absl::Status WithMessagesField(const absl::Status& status);

}  // namespace baton::router::http
