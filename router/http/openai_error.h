// Errors as clients of the OpenAI API read them. Pure; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/http/http_message.h"

namespace baton::router::http {

// Most bytes of a client's request id that an error's headers give back.
inline constexpr size_t kMaxShownIdBytes = 128;

// {"error": {"message", "type", "param", "code"}}; `param` is FieldOf(status).
std::string ErrorJson(const absl::Status& status);

// The answer with that body, the HTTP status that fits, and, where given, when
// to come back (retry-after in whole seconds, retry-after-ms).
Response ErrorResponse(const absl::Status& status,
                       std::optional<absl::Duration> retry_after);

// 403, 404 and 405, in the same shape.
Response ForbiddenResponse(absl::string_view message, const char* code);
Response NotFoundResponse(absl::string_view path);
Response MethodNotAllowedResponse(absl::string_view method,
                                  absl::string_view allowed);

// 200 with a JSON body.
Response JsonResponse(std::string body);

}  // namespace baton::router::http
