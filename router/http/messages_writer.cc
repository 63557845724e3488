#include "router/http/messages_writer.h"

#include <optional>
#include <utility>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "router/http/json_fields.h"
#include "router/http/openai_error.h"

namespace baton::router::http {
namespace {

// One event of a stream; `fields` are those after its type: ",...".
void AppendEvent(absl::string_view type, absl::string_view fields,
                 std::string* out) {
  absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type, "\"",
                  fields, "}\n\n");
}

std::string Quoted(absl::string_view text) {
  std::string out;
  AppendJsonString(text, &out);
  return out;
}

// What is not cached counts as input.
std::string UsageJson(const AnswerUsage& usage) {
  return absl::StrCat(
      "{\"input_tokens\":", usage.prompt_tokens - usage.cached_prompt_tokens,
      ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":",
      usage.cached_prompt_tokens, ",\"output_tokens\":", usage.output_tokens,
      "}");
}

// The input of a tool is an object, also where the model wrote something else.
std::string InputJson(const std::string& written) {
  boost::json::error_code error;
  const json::value value = json::parse(written, error);
  if (!error && value.is_object()) return written;
  if (written.empty()) return "{}";
  return absl::StrCat("{\"INVALID_JSON\":", Quoted(written), "}");
}

const char* ErrorType(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return http_status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// The message of an error of the OpenAI API.
std::string MessageIn(const std::string& body) {
  boost::json::error_code error;
  const json::value parsed = json::parse(body, error);
  if (error || !parsed.is_object()) return body;
  const json::value* const inner = parsed.get_object().if_contains("error");
  if (inner == nullptr || !inner->is_object()) return body;
  const json::value* const text = inner->get_object().if_contains("message");
  return text != nullptr && text->is_string() ? std::string(text->get_string())
                                              : body;
}

std::string ErrorFields(int http_status, absl::string_view message) {
  return absl::StrCat(",\"error\":{\"type\":\"", ErrorType(http_status),
                      "\",\"message\":", Quoted(message), "}");
}

}  // namespace

MessagesWriter::MessagesWriter(const AnswerHead& head) : head_(head) {}

std::string MessagesWriter::BlockJson(const Block& block) {
  switch (block.kind) {
    case Kind::kThinking:
      // Nobody has to prove later that the model thought so.
      return absl::StrCat("{\"type\":\"thinking\",\"thinking\":",
                          Quoted(block.text), ",\"signature\":\"\"}");
    case Kind::kText:
      return absl::StrCat("{\"type\":\"text\",\"text\":", Quoted(block.text),
                          ",\"citations\":null}");
    case Kind::kToolUse:
      break;
  }
  return absl::StrCat("{\"type\":\"tool_use\",\"id\":", Quoted(block.call_id),
                      ",\"name\":", Quoted(block.name),
                      ",\"input\":", InputJson(block.text), "}");
}

std::string MessagesWriter::Json() const {
  std::string out =
      absl::StrCat("{\"id\":", Quoted(head_.id),
                   ",\"type\":\"message\",\"role\":\"assistant\",\"model\":",
                   Quoted(head_.model), ",\"content\":[");
  for (size_t i = 0; i < blocks_.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ",", BlockJson(blocks_[i]));
  }
  absl::StrAppend(&out, "],\"stop_reason\":", stop_,
                  ",\"usage\":", UsageJson(usage_), "}");
  return out;
}

void MessagesWriter::Begin(int64_t prompt_tokens, std::string* out) {
  usage_ = {.prompt_tokens = prompt_tokens};
  if (out == nullptr) return;
  AppendEvent("message_start", absl::StrCat(",\"message\":", Json()), out);
}

MessagesWriter::Block& MessagesWriter::Add(Block block, std::string* out) {
  if (open_) Close(out);
  blocks_.push_back(std::move(block));
  open_ = true;
  if (out != nullptr) {
    AppendEvent("content_block_start",
                absl::StrCat(",\"index\":", blocks_.size() - 1,
                             ",\"content_block\":", BlockJson(blocks_.back())),
                out);
  }
  return blocks_.back();
}

MessagesWriter::Block& MessagesWriter::Open(Kind kind, std::string* out) {
  if (open_ && blocks_.back().kind == kind) return blocks_.back();
  return Add({.kind = kind}, out);
}

void MessagesWriter::Close(std::string* out) {
  open_ = false;
  if (out == nullptr) return;
  AppendEvent("content_block_stop",
              absl::StrCat(",\"index\":", blocks_.size() - 1), out);
}

void MessagesWriter::Delta(absl::string_view type, absl::string_view field,
                           absl::string_view text, std::string* out) const {
  if (out == nullptr) return;
  AppendEvent(
      "content_block_delta",
      absl::StrCat(",\"index\":", blocks_.size() - 1, ",\"delta\":{\"type\":\"",
                   type, "\",\"", field, "\":", Quoted(text), "}"),
      out);
}

void MessagesWriter::Reasoning(absl::string_view text, std::string* out) {
  if (text.empty()) return;
  absl::StrAppend(&Open(Kind::kThinking, out).text, text);
  Delta("thinking_delta", "thinking", text, out);
}

void MessagesWriter::Text(absl::string_view text, const Logprobs& /*logprobs*/,
                          std::string* out) {
  if (text.empty()) return;
  absl::StrAppend(&Open(Kind::kText, out).text, text);
  Delta("text_delta", "text", text, out);
}

void MessagesWriter::CallBegun(absl::string_view call_id,
                               absl::string_view name, std::string* out) {
  Add({.kind = Kind::kToolUse,
       .call_id = std::string(call_id),
       .name = std::string(name)},
      out);
}

void MessagesWriter::CallArguments(absl::string_view text, std::string* out) {
  absl::StrAppend(&blocks_.back().text, text);
  Delta("input_json_delta", "partial_json", text, out);
}

void MessagesWriter::Finish(const AnswerEnd& end, std::string* out) {
  if (open_) Close(out);
  usage_ = end.usage;
  const bool called =
      !end.cut && absl::c_any_of(blocks_, [](const Block& block) {
        return block.kind == Kind::kToolUse;
      });
  const char* reason = "end_turn";
  if (end.reason == v1::FINISH_REASON_LENGTH) {
    reason = "max_tokens";
  } else if (!end.stop.empty()) {
    reason = "stop_sequence";
  } else if (called) {
    reason = "tool_use";
  }
  stop_ = absl::StrCat("\"", reason, "\",\"stop_sequence\":",
                       end.stop.empty() ? "null" : Quoted(end.stop));
  if (out == nullptr) return;
  AppendEvent("message_delta",
              absl::StrCat(",\"delta\":{\"stop_reason\":", stop_,
                           "},\"usage\":", UsageJson(usage_)),
              out);
  AppendEvent("message_stop", "", out);
}

void MessagesWriter::Fail(const absl::Status& error, std::string* out) {
  if (out == nullptr) return;
  const Response response = ErrorResponse(error, std::nullopt);
  AppendEvent("error", ErrorFields(response.status, MessageIn(response.body)),
              out);
}

Response AsMessagesError(Response openai) {
  std::string id;
  for (const auto& [name, value] : openai.headers) {
    if (name == "x-request-id") id = value;
  }
  openai.body = absl::StrCat(
      "{\"type\":\"error\"", ErrorFields(openai.status, MessageIn(openai.body)),
      ",\"request_id\":", id.empty() ? "null" : Quoted(id), "}");
  // Where the clients of this API look for it.
  if (!id.empty()) openai.headers.emplace_back("request-id", id);
  return openai;
}

}  // namespace baton::router::http
