// The requests of OpenAI's Responses API, POST /v1/responses: read into what
// they say as chat requests. Nothing is stored: what refers to an earlier
// response, or is to be fetched later, is refused, and so are tools that a
// server would have to run, and input that is not text. Other fields that
// chat requests have (top_k, chat_template_kwargs, ...) mean the same here.
// Pure; any thread.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "router/http/openai_request.h"

namespace baton::router::http {

// Sets `echoed_fields`. InvalidArgument names the field
// (router/invalid_field.h).
absl::StatusOr<ApiRequest> ParseResponsesRequest(absl::string_view body);

// An error of the chat request that was made of one, with the names that its
// client knows: "input" for "messages". No index: messages are counted
// otherwise than items.
absl::Status WithResponsesField(const absl::Status& status);

}  // namespace baton::router::http
