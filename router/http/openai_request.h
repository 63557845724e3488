// The requests of the OpenAI API, read and checked as far as one can without
// the model: POST /v1/completions, /v1/chat/completions, /tokenize and
// /detokenize (responses_request.h: /v1/responses; messages_request.h:
// /v1/messages).
//
// Fields that Baton does not know are ignored, as OpenAI-compatible servers do;
// fields that would change the answer and that Baton cannot honour are refused.
// Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "router/http/http_message.h"
#include "router/http/tool_use.h"

namespace baton::router::http {

struct ApiRequest {
  bool chat = false;
  // One for each prompt, alike but for the prompt. Each is answered `n` times.
  std::vector<v1::GenerateRequest> prompts;
  int n = 1;
  bool stream = false;
  // A chunk with the usage ends the stream.
  bool include_usage = false;
  // The answer begins with the prompt (completions).
  bool echo = false;
  // What the model may call (chat).
  ToolUse tools;
  // Of models that think before they answer (chat): that is told from the
  // answer, and shown.
  bool separate_reasoning = true;
  bool include_reasoning = true;
  // Of POST /v1/responses: the fields of the request that its answers repeat,
  // `,"name":value` each.
  std::string echoed_fields;

  // The model that it asks for, by which its answers call it; `name` if it asks
  // for none.
  const std::string& ModelOr(const std::string& name) const {
    return prompts.front().model().empty() ? name : prompts.front().model();
  }
};

// InvalidArgument names the field (router/invalid_field.h).
absl::StatusOr<ApiRequest> ParseCompletionRequest(absl::string_view body);
absl::StatusOr<ApiRequest> ParseChatRequest(absl::string_view body);
absl::StatusOr<ApiRequest> ReadChatRequest(const json::object& body);

// What a request's headers say of all of its prompts: x-baton-ttft-ms,
// x-baton-itl-ms, x-baton-class ("interactive", "batch"), x-baton-priority.
absl::Status ApplyHeaders(const Request& request, ApiRequest* api);

// The prompt of POST /tokenize, and whether special tokens are added around it.
struct TokenizeRequest {
  // Text or chat.
  v1::GenerateRequest prompt;
  bool add_special_tokens = true;
};
absl::StatusOr<TokenizeRequest> ParseTokenizeRequest(absl::string_view body);

// The tokens of POST /detokenize.
absl::StatusOr<std::vector<uint32_t>> ParseDetokenizeRequest(
    absl::string_view body);

}  // namespace baton::router::http
