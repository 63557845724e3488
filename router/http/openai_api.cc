#include "router/http/openai_api.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <google/protobuf/util/json_util.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/json_text.h"
#include "common/status_macros.h"
#include "router/chat_prompt.h"
#include "router/console/console_files.h"
#include "router/http/completion_call.h"
#include "router/http/endpoint.h"
#include "router/http/messages_request.h"
#include "router/http/messages_writer.h"
#include "router/http/openai_error.h"
#include "router/http/openai_request.h"
#include "router/http/page_guard.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

constexpr size_t kMaxQueuedIntake = 1024;
// To who found no room for what it sends: that takes no longer to be read.
constexpr absl::Duration kComeBack = absl::Seconds(1);

// What a GET path is, for the answer to other methods.
bool IsGetPath(absl::string_view path) {
  return path == "/v1/models" || absl::StartsWith(path, "/v1/models/") ||
         path == "/healthz" || path == "/readyz" || path == "/metrics" ||
         path == "/api/cluster" || FindConsoleFile(path) != nullptr;
}

constexpr absl::string_view kCountTokensPath = "/v1/messages/count_tokens";

bool IsPostPath(absl::string_view path) {
  return EndpointOf(path).has_value() || path == kCountTokensPath ||
         path == "/tokenize" || path == "/detokenize";
}

// An error as those who ask there read it.
Response ErrorAt(absl::string_view path, Response error) {
  const bool messages =
      path == kCountTokensPath || EndpointOf(path) == Endpoint::kMessages;
  return messages ? AsMessagesError(std::move(error)) : error;
}

// Nobody needs a key for these.
bool IsOpenPath(absl::string_view path) {
  return path == "/healthz" || path == "/readyz" ||
         FindConsoleFile(path) != nullptr;
}

// The refusal of a caller that is not known.
std::optional<Response> UnlessKnown(const absl::Status& known,
                                    const Request& head) {
  if (known.ok()) return std::nullopt;
  Response refusal = ErrorResponse(known, std::nullopt);
  const absl::string_view id = head.Header("x-request-id");
  if (!id.empty() && id.size() <= kMaxShownIdBytes) {
    refusal.headers.emplace_back("x-request-id", std::string(id));
  }
  return ErrorAt(head.path, std::move(refusal));
}

Response ConsoleResponse(const Request& request, const ConsoleFile& file) {
  Response response;
  response.headers = {
      {"content-type", std::string(file.content_type)},
      {"etag", std::string(file.etag)},
      {"cache-control", "no-cache"},
      {"content-security-policy",
       "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"},
      {"x-content-type-options", "nosniff"},
      {"referrer-policy", "no-referrer"}};
  if (request.Header("if-none-match") == file.etag) {
    response.status = 304;
  } else {
    response.body = std::string(file.body);
  }
  return response;
}

// Adapters have the model's tokens.
absl::StatusOr<std::vector<TokenId>> TokensOf(const TokenizeRequest& request,
                                              const ServedModel& model,
                                              const AdapterNames& adapters,
                                              const KeyRights& rights) {
  BATON_RETURN_IF_ERROR(
      CheckModelName(request.prompt.model(), model, &adapters, rights));
  std::string text = request.prompt.text();
  if (request.prompt.has_chat()) {
    BATON_ASSIGN_OR_RETURN(
        text, RenderChat(request.prompt.chat(), model, absl::Now()));
  }
  absl::StatusOr<std::vector<TokenId>> tokens = model.tokenizer->Encode(
      text, {.add_special_tokens = request.add_special_tokens});
  if (tokens.ok()) return tokens;
  return WithField("prompt", absl::InvalidArgumentError(absl::StrCat(
                                 "prompt: ", tokens.status().message())));
}

void AppendNameOrNull(absl::string_view name, std::string* out) {
  if (name.empty()) {
    out->append("null");
  } else {
    AppendJsonString(name, out);
  }
}

}  // namespace

OpenAiApi::OpenAiApi(const Options& options, FrontDoor* door,
                     std::function<std::string()> metrics_text)
    : options_(options),
      door_(door),
      metrics_text_(std::move(metrics_text)),
      started_unix_seconds_(absl::ToUnixSeconds(absl::Now())),
      intake_(options.intake_threads, kMaxQueuedIntake) {}

std::optional<Response> OpenAiApi::Check(const Request& head) {
  if (!door_->needs_keys()) {
    std::optional<Response> refusal = RefuseOtherPages(head);
    if (refusal.has_value()) return ErrorAt(head.path, *std::move(refusal));
  }
  if (IsPostPath(head.path)) {
    if (head.method != "POST") {
      return ErrorAt(head.path, MethodNotAllowedResponse(head.method, "POST"));
    }
    return UnlessKnown(door_->Recognize(AuthorizationOf(head)), head);
  }
  if (!IsGetPath(head.path)) return NotFoundResponse(head.path);
  if (head.method != "GET" && head.method != "HEAD") {
    return MethodNotAllowedResponse(head.method, "GET, HEAD");
  }
  if (IsOpenPath(head.path)) return std::nullopt;
  return UnlessKnown(door_->Authenticate(AuthorizationOf(head)), head);
}

std::optional<Response> OpenAiApi::NoRoom(const Request& head) {
  return ErrorAt(head.path, ErrorResponse(door_->NoRoom(), kComeBack));
}

void OpenAiApi::Handle(Request request, ResponderPtr responder) {
  if (request.method != "POST") return Get(request, responder);
  if (request.body.size() <= options_.large_body_bytes) {
    return Post(request, responder);
  }
  const std::string path = request.path;
  const bool queued = intake_.TryServe(
      std::move(request), responder,
      [this](const Request& waited, const ResponderPtr& waiting) {
        Post(waited, waiting);
      });
  if (queued) return;
  responder->Send(ErrorAt(path, ErrorResponse(door_->NoRoom(), kComeBack)));
}

void OpenAiApi::Post(const Request& request, const ResponderPtr& responder) {
  if (const auto endpoint = EndpointOf(request.path)) {
    CompletionCall::Start(door_, request, *endpoint, responder);
  } else if (request.path == kCountTokensPath) {
    CountTokens(request, responder);
  } else if (request.path == "/tokenize") {
    Tokenize(request, responder);
  } else {
    Detokenize(request, responder);
  }
}

void OpenAiApi::Get(const Request& request, const ResponderPtr& responder) {
  if (request.path == "/healthz") return responder->Send(Health());
  if (request.path == "/readyz") return responder->Send(Readiness());
  if (const ConsoleFile* file = FindConsoleFile(request.path)) {
    return responder->Send(ConsoleResponse(request, *file));
  }
  if (request.path == "/metrics") {
    responder->Send({.status = 200,
                     .headers = {{"content-type",
                                  "text/plain; version=0.0.4; charset=utf-8"}},
                     .body = metrics_text_()});
  } else if (request.path == "/api/cluster") {
    Cluster(responder);
  } else {
    Models(request, responder);
  }
}

FrontDoor::Admission OpenAiApi::Admitted(const Request& request,
                                         const ResponderPtr& responder) {
  absl::Duration retry_after = absl::ZeroDuration();
  absl::StatusOr<FrontDoor::Admission> admission =
      door_->Admit(AuthorizationOf(request), &retry_after);
  if (admission.ok()) return *std::move(admission);
  responder->Send(ErrorAt(
      request.path,
      ErrorResponse(admission.status(), retry_after > absl::ZeroDuration()
                                            ? std::optional(retry_after)
                                            : std::nullopt)));
  return nullptr;
}

void OpenAiApi::Tokenize(const Request& request,
                         const ResponderPtr& responder) {
  const FrontDoor::Admission admission = Admitted(request, responder);
  if (admission == nullptr) return;
  const absl::StatusOr<TokenizeRequest> parsed =
      ParseTokenizeRequest(request.body);
  if (!parsed.ok()) {
    return responder->Send(ErrorResponse(parsed.status(), std::nullopt));
  }
  const absl::StatusOr<std::vector<TokenId>> tokens = TokensOf(
      *parsed, door_->model(), *door_->serving().adapters, admission->rights());
  if (!tokens.ok()) {
    return responder->Send(ErrorResponse(tokens.status(), std::nullopt));
  }
  std::string body = absl::StrCat("{\"count\":", tokens->size(),
                                  ",\"max_model_len\":", door_->max_context(),
                                  ",\"tokens\":[");
  for (size_t i = 0; i < tokens->size(); ++i) {
    absl::StrAppend(&body, i == 0 ? "" : ",", (*tokens)[i]);
  }
  body.append("]}");
  responder->Send(JsonResponse(std::move(body)));
}

void OpenAiApi::CountTokens(const Request& request,
                            const ResponderPtr& responder) {
  const FrontDoor::Admission admission = Admitted(request, responder);
  if (admission == nullptr) return;
  const auto count = [&]() -> absl::StatusOr<size_t> {
    BATON_ASSIGN_OR_RETURN(const TokenizeRequest parsed,
                           ParseCountTokensRequest(request.body));
    const auto tokens =
        TokensOf(parsed, door_->model(), *door_->serving().adapters,
                 admission->rights());
    if (!tokens.ok()) return WithMessagesField(tokens.status());
    return tokens->size();
  }();
  responder->Send(
      count.ok()
          ? JsonResponse(absl::StrCat("{\"input_tokens\":", *count, "}"))
          : ErrorAt(request.path, ErrorResponse(count.status(), std::nullopt)));
}

void OpenAiApi::Detokenize(const Request& request,
                           const ResponderPtr& responder) {
  const FrontDoor::Admission admission = Admitted(request, responder);
  if (admission == nullptr) return;
  const absl::StatusOr<std::vector<uint32_t>> ids =
      ParseDetokenizeRequest(request.body);
  if (!ids.ok()) {
    return responder->Send(ErrorResponse(ids.status(), std::nullopt));
  }
  const std::vector<TokenId> tokens(ids->begin(), ids->end());
  const absl::StatusOr<std::string> text =
      door_->model().tokenizer->Decode(tokens);
  if (!text.ok()) {
    return responder->Send(
        ErrorResponse(WithField("tokens", text.status()), std::nullopt));
  }
  std::string body = "{\"prompt\":";
  AppendJsonString(*text, &body);
  body.push_back('}');
  responder->Send(JsonResponse(std::move(body)));
}

std::string OpenAiApi::ModelJson(absl::string_view adapter) const {
  const ServedModel& model = door_->model();
  std::string out = "{\"id\":";
  AppendJsonString(adapter.empty() ? model.name : adapter, &out);
  if (!adapter.empty()) {
    absl::StrAppend(&out, ",\"parent\":");
    AppendJsonString(model.name, &out);
  }
  absl::StrAppend(
      &out, ",\"object\":\"model\",\"created\":", started_unix_seconds_,
      ",\"owned_by\":\"baton\",\"max_model_len\":", door_->max_context(),
      ",\"chat\":", model.chat_template != nullptr ? "true" : "false");
  // The rest is for clients of Anthropic's API.
  absl::StrAppend(&out, ",\"type\":\"model\",\"created_at\":\"",
                  absl::FormatTime("%Y-%m-%dT%H:%M:%SZ",
                                   absl::FromUnixSeconds(started_unix_seconds_),
                                   absl::UTCTimeZone()),
                  "\",\"display_name\":");
  AppendJsonString(adapter.empty() ? model.name : adapter, &out);
  out.push_back('}');
  return out;
}

void OpenAiApi::Models(const Request& request, const ResponderPtr& responder) {
  const auto rights = door_->RightsOf(AuthorizationOf(request));
  if (!rights.ok()) {
    return responder->Send(
        ErrorAt(request.path, ErrorResponse(rights.status(), std::nullopt)));
  }
  const std::string& served = door_->model().name;
  const Serving serving = door_->serving();
  absl::string_view name = request.path;
  if (absl::ConsumePrefix(&name, "/v1/models/")) {
    const absl::Status known =
        CheckModelName(name, door_->model(), serving.adapters.get(), **rights);
    if (!known.ok()) {
      return responder->Send(ErrorResponse(known, std::nullopt));
    }
    return responder->Send(JsonResponse(ModelJson(name == served ? "" : name)));
  }
  std::vector<absl::string_view> names = {served};
  for (const auto& [adapter, identity] : *serving.adapters) {
    // By the model's own name, the model is meant.
    if (adapter != served) names.push_back(adapter);
  }
  names.erase(std::remove_if(names.begin(), names.end(),
                             [&](absl::string_view one) {
                               return !(*rights)->HasModel(one);
                             }),
              names.end());
  std::string body = "{\"object\":\"list\",\"data\":[";
  for (const absl::string_view one : names) {
    absl::StrAppend(&body, one == names.front() ? "" : ",",
                    ModelJson(one == served ? "" : one));
  }
  body.append("],\"has_more\":false,\"first_id\":");
  AppendNameOrNull(names.empty() ? "" : names.front(), &body);
  body.append(",\"last_id\":");
  AppendNameOrNull(names.empty() ? "" : names.back(), &body);
  body.push_back('}');
  responder->Send(JsonResponse(std::move(body)));
}

void OpenAiApi::Cluster(const ResponderPtr& responder) {
  door_->AskCluster([responder, name = options_.name](
                        absl::StatusOr<v1::GetClusterResponse> cluster) {
    if (!cluster.ok()) {
      return responder->Send(ErrorResponse(cluster.status(), std::nullopt));
    }
    cluster->set_router_name(name);
    google::protobuf::util::JsonPrintOptions options;
    options.always_print_primitive_fields = true;
    options.preserve_proto_field_names = true;
    std::string body;
    const auto status =
        google::protobuf::util::MessageToJsonString(*cluster, &body, options);
    if (!status.ok()) {
      return responder->Send(ErrorResponse(
          absl::InternalError("the cluster's state has no JSON form"),
          std::nullopt));
    }
    responder->Send(JsonResponse(std::move(body)));
  });
}

Response OpenAiApi::Health() const {
  const absl::Duration age = door_->clock()->Now() - door_->last_turn();
  const bool stuck = age > options_.stuck_after;
  Response response = JsonResponse(
      stuck ? absl::StrCat("{\"status\":\"stuck\",\"seconds_since_last_turn\":",
                           absl::ToInt64Seconds(age), "}")
            : "{\"status\":\"alive\"}");
  response.status = stuck ? 503 : 200;
  return response;
}

Response OpenAiApi::Readiness() const {
  const Serving serving = door_->serving();
  const bool stuck =
      door_->clock()->Now() - door_->last_turn() > options_.stuck_after;
  const char* state = "ready";
  if (stuck) {
    state = "stuck";
  } else if (serving.draining) {
    state = "draining";
  } else if (!serving.serving) {
    state = "no workers";
  }
  const bool ready = !stuck && serving.serving;
  Response response = JsonResponse(
      absl::StrCat("{\"status\":\"", state,
                   "\",\"prefill_workers\":", serving.num_prefill_workers,
                   ",\"decode_workers\":", serving.num_decode_workers, "}"));
  response.status = ready ? 200 : 503;
  return response;
}

}  // namespace baton::router::http
