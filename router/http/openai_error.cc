#include "router/http/openai_error.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "common/utf8.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

struct Shape {
  int http_status;
  const char* type;
  const char* code;  // null: none
};

Shape ShapeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kOutOfRange:
      return {400, "invalid_request_error", nullptr};
    case absl::StatusCode::kNotFound:
      return {404, "invalid_request_error", "model_not_found"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "authentication_error", "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_error", nullptr};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_error", "rate_limit_exceeded"};
    case absl::StatusCode::kCancelled:
      return {499, "server_error", "cancelled"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "server_error", "timeout"};
    case absl::StatusCode::kUnavailable:
      return {503, "server_error", "service_unavailable"};
    default:
      return {500, "server_error", "internal_error"};
  }
}

// What a client is told of its own text.
constexpr size_t kMaxMessageBytes = 2000;

std::string MakeError(absl::string_view message, const char* type,
                      absl::string_view param, const char* code) {
  std::string body = "{\"error\":{\"message\":";
  AppendJsonString(CutUtf8(message, kMaxMessageBytes), &body);
  absl::StrAppend(&body, ",\"type\":\"", type, "\",\"param\":");
  if (param.empty()) {
    body.append("null");
  } else {
    AppendJsonString(param, &body);
  }
  if (code == nullptr) {
    body.append(",\"code\":null}}");
  } else {
    absl::StrAppend(&body, ",\"code\":\"", code, "\"}}");
  }
  return body;
}

}  // namespace

Response JsonResponse(std::string body) {
  return {.status = 200,
          .headers = {{"content-type", "application/json"}},
          .body = std::move(body)};
}

std::string ErrorJson(const absl::Status& status) {
  const Shape shape = ShapeOf(status);
  return MakeError(status.message(), shape.type, FieldOf(status), shape.code);
}

Response ErrorResponse(const absl::Status& status,
                       std::optional<absl::Duration> retry_after) {
  Response response = JsonResponse(ErrorJson(status));
  response.status = ShapeOf(status).http_status;
  if (response.status == 401) {
    response.headers.emplace_back("www-authenticate", "Bearer");
  }
  if (retry_after.has_value()) {
    const double seconds = absl::ToDoubleSeconds(*retry_after);
    response.headers.emplace_back(
        "retry-after",
        absl::StrCat(std::max<int64_t>(
            1, static_cast<int64_t>(std::ceil(std::min(seconds, 86400.0))))));
    response.headers.emplace_back(
        "retry-after-ms", absl::StrCat(std::max<int64_t>(
                              1, absl::ToInt64Milliseconds(*retry_after))));
  }
  return response;
}

Response ForbiddenResponse(absl::string_view message, const char* code) {
  Response response =
      JsonResponse(MakeError(message, "permission_error", "", code));
  response.status = 403;
  return response;
}

Response NotFoundResponse(absl::string_view path) {
  Response response = JsonResponse(
      MakeError(absl::StrCat("there is nothing at ", path.substr(0, 200)),
                "invalid_request_error", "", "not_found"));
  response.status = 404;
  return response;
}

Response MethodNotAllowedResponse(absl::string_view method,
                                  absl::string_view allowed) {
  Response response = JsonResponse(
      MakeError(absl::StrCat(method.substr(0, 32), " is not allowed here; ",
                             allowed, " is"),
                "invalid_request_error", "", "method_not_allowed"));
  response.status = 405;
  response.headers.emplace_back("allow", std::string(allowed));
  return response;
}

}  // namespace baton::router::http
