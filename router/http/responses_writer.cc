#include "router/http/responses_writer.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/json_text.h"
#include "common/stable_hash.h"

namespace baton::router::http {
namespace {

void AppendTextField(absl::string_view name, absl::string_view value,
                     std::string* out) {
  absl::StrAppend(out, ",\"", name, "\":");
  AppendJsonString(value, out);
}

void AppendResponseUsage(const AnswerUsage& usage, std::string* out) {
  absl::StrAppend(
      out, "{\"input_tokens\":", usage.prompt_tokens,
      ",\"input_tokens_details\":{\"cached_tokens\":",
      usage.cached_prompt_tokens, "},\"output_tokens\":", usage.output_tokens,
      ",\"output_tokens_details\":{\"reasoning_tokens\":",
      usage.reasoning_tokens.value_or(0),
      "},\"total_tokens\":", usage.prompt_tokens + usage.output_tokens, "}");
}

}  // namespace

ResponsesWriter::ResponsesWriter(const AnswerHead& head,
                                 std::string echoed_fields)
    : head_(head), echoed_fields_(std::move(echoed_fields)) {}

// The same when it is asked for again, and no other response's.
std::string ResponsesWriter::NewId(const char* prefix) const {
  const std::string name = absl::StrCat(head_.id, "/", items_.size());
  const Hash128 hash = StableHash(std::as_bytes(std::span(name)));
  return absl::StrFormat("%s_%016x%016x", prefix, hash.high, hash.low);
}

void ResponsesWriter::BeginEvent(absl::string_view type, std::string* out) {
  absl::StrAppend(out, "event: ", type, "\ndata: {\"type\":\"", type,
                  "\",\"sequence_number\":", sequence_number_++);
}

void ResponsesWriter::EndEvent(std::string* out) { out->append("}\n\n"); }

void ResponsesWriter::BeginItemEvent(absl::string_view type, std::string* out) {
  BeginEvent(type, out);
  absl::StrAppend(out, ",\"item_id\":\"", items_.back().id,
                  "\",\"output_index\":", items_.size() - 1);
}

void ResponsesWriter::BeginPartEvent(absl::string_view type, std::string* out) {
  BeginItemEvent(type, out);
  out->append(",\"content_index\":0");
}

void ResponsesWriter::ResponseEvent(absl::string_view type, std::string* out) {
  BeginEvent(type, out);
  absl::StrAppend(out, ",\"response\":", Json());
  EndEvent(out);
}

std::string ResponsesWriter::PartJson(const Item& item) {
  std::string out;
  if (item.kind == Kind::kReasoning) {
    out = "{\"type\":\"reasoning_text\"";
  } else {
    out = absl::StrCat("{\"type\":\"output_text\",\"annotations\":[],",
                       "\"logprobs\":[", item.logprobs, "]");
  }
  AppendTextField("text", item.text, &out);
  out.push_back('}');
  return out;
}

std::string ResponsesWriter::ItemJson(const Item& item) {
  std::string out = absl::StrCat("{\"id\":\"", item.id, "\",\"status\":\"",
                                 item.status, "\",\"type\":\"");
  // A part is there once it has begun.
  const std::string content =
      item.kind != Kind::kCall &&
              item.status != absl::string_view("in_progress")
          ? PartJson(item)
          : "";
  switch (item.kind) {
    case Kind::kReasoning:
      absl::StrAppend(&out, "reasoning\",\"summary\":[],\"content\":[", content,
                      "]");
      break;
    case Kind::kMessage:
      absl::StrAppend(&out, "message\",\"role\":\"assistant\",\"content\":[",
                      content, "]");
      break;
    case Kind::kCall:
      out.append("function_call\"");
      AppendTextField("call_id", item.call_id, &out);
      AppendTextField("name", item.name, &out);
      AppendTextField("arguments", item.text, &out);
      break;
  }
  out.push_back('}');
  return out;
}

std::string ResponsesWriter::Json() const {
  std::string out = "{\"id\":";
  AppendJsonString(head_.id, &out);
  absl::StrAppend(
      &out,
      ",\"object\":\"response\",\"created_at\":", head_.created_unix_seconds,
      ",\"status\":\"", status_,
      "\",\"background\":false,\"error\":", error_.empty() ? "null" : error_,
      ",\"incomplete_details\":",
      status_ == absl::string_view("incomplete")
          ? "{\"reason\":\"max_output_tokens\"}"
          : "null");
  AppendTextField("model", head_.model, &out);
  out.append(",\"output\":[");
  for (size_t i = 0; i < items_.size(); ++i) {
    absl::StrAppend(&out, i == 0 ? "" : ",", ItemJson(items_[i]));
  }
  out.append(
      "],\"previous_response_id\":null,\"store\":false,"
      "\"truncation\":\"disabled\",\"usage\":");
  if (usage_.has_value()) {
    AppendResponseUsage(*usage_, &out);
  } else {
    out.append("null");
  }
  absl::StrAppend(&out, echoed_fields_, "}");
  return out;
}

void ResponsesWriter::Begin(int64_t /*prompt_tokens*/, std::string* out) {
  if (out == nullptr) return;
  ResponseEvent("response.created", out);
  ResponseEvent("response.in_progress", out);
}

ResponsesWriter::Item& ResponsesWriter::Add(Item item, std::string* out) {
  if (open_) Close("completed", out);
  items_.push_back(std::move(item));
  open_ = true;
  Item& added = items_.back();
  if (out == nullptr) return added;
  BeginEvent("response.output_item.added", out);
  absl::StrAppend(out, ",\"output_index\":", items_.size() - 1,
                  ",\"item\":", ItemJson(added));
  EndEvent(out);
  if (added.kind == Kind::kCall) return added;
  BeginPartEvent("response.content_part.added", out);
  absl::StrAppend(out, ",\"part\":", PartJson(added));
  EndEvent(out);
  return added;
}

ResponsesWriter::Item& ResponsesWriter::Open(Kind kind, std::string* out) {
  if (open_ && items_.back().kind == kind) return items_.back();
  return Add(
      {.kind = kind, .id = NewId(kind == Kind::kReasoning ? "rs" : "msg")},
      out);
}

void ResponsesWriter::Close(const char* status, std::string* out) {
  Item& item = items_.back();
  item.status = status;
  open_ = false;
  if (out == nullptr) return;
  if (item.kind == Kind::kCall) {
    BeginItemEvent("response.function_call_arguments.done", out);
    AppendTextField("name", item.name, out);
    AppendTextField("arguments", item.text, out);
    EndEvent(out);
  } else {
    const bool thought = item.kind == Kind::kReasoning;
    BeginPartEvent(
        thought ? "response.reasoning_text.done" : "response.output_text.done",
        out);
    AppendTextField("text", item.text, out);
    if (!thought) absl::StrAppend(out, ",\"logprobs\":[", item.logprobs, "]");
    EndEvent(out);
    BeginPartEvent("response.content_part.done", out);
    absl::StrAppend(out, ",\"part\":", PartJson(item));
    EndEvent(out);
  }
  BeginEvent("response.output_item.done", out);
  absl::StrAppend(out, ",\"output_index\":", items_.size() - 1,
                  ",\"item\":", ItemJson(item));
  EndEvent(out);
}

void ResponsesWriter::Reasoning(absl::string_view text, std::string* out) {
  Open(Kind::kReasoning, out).text.append(text.data(), text.size());
  if (out == nullptr) return;
  BeginPartEvent("response.reasoning_text.delta", out);
  AppendTextField("delta", text, out);
  EndEvent(out);
}

void ResponsesWriter::Text(absl::string_view text, const Logprobs& logprobs,
                           std::string* out) {
  Item& item = Open(Kind::kMessage, out);
  item.text.append(text.data(), text.size());
  std::string tokens;
  if (!logprobs.empty()) {
    AppendTokenList(logprobs, &tokens);
    // Without the brackets.
    tokens = tokens.substr(1, tokens.size() - 2);
    absl::StrAppend(&item.logprobs, item.logprobs.empty() ? "" : ",", tokens);
  }
  if (out == nullptr) return;
  BeginPartEvent("response.output_text.delta", out);
  AppendTextField("delta", text, out);
  absl::StrAppend(out, ",\"logprobs\":[", tokens, "]");
  EndEvent(out);
}

void ResponsesWriter::CallBegun(absl::string_view call_id,
                                absl::string_view name, std::string* out) {
  Add({.kind = Kind::kCall,
       .id = NewId("fc"),
       .call_id = std::string(call_id),
       .name = std::string(name)},
      out);
}

void ResponsesWriter::CallArguments(absl::string_view text, std::string* out) {
  items_.back().text.append(text.data(), text.size());
  if (out == nullptr) return;
  BeginItemEvent("response.function_call_arguments.delta", out);
  AppendTextField("delta", text, out);
  EndEvent(out);
}

void ResponsesWriter::Finish(const AnswerEnd& end, std::string* out) {
  // An answer without a word is a message without one.
  if (items_.empty()) Open(Kind::kMessage, out);
  const bool incomplete = end.reason == v1::FINISH_REASON_LENGTH;
  if (open_) Close(incomplete || end.cut ? "incomplete" : "completed", out);
  status_ = incomplete ? "incomplete" : "completed";
  usage_ = end.usage;
  if (out == nullptr) return;
  ResponseEvent(incomplete ? "response.incomplete" : "response.completed", out);
}

void ResponsesWriter::Fail(const absl::Status& error, std::string* out) {
  // What was said stays said; events of its end would be no news.
  if (open_) items_.back().status = "incomplete";
  open_ = false;
  status_ = "failed";
  error_ = "{\"code\":\"server_error\"";
  AppendTextField("message", error.message(), &error_);
  error_.push_back('}');
  if (out != nullptr) ResponseEvent("response.failed", out);
}

}  // namespace baton::router::http
