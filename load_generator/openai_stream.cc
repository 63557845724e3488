#include "load_generator/openai_stream.h"

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/json_text.h"
#include "common/utf8.h"

namespace baton::load_generator {
namespace {

using nlohmann::json;

constexpr size_t kMaxErrorBytes = 300;

int32_t Count(const json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number_integer()) return 0;
  return static_cast<int32_t>(found->get<int64_t>());
}

bool HasText(const json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() &&
         !found->get_ref<const std::string&>().empty();
}

bool BringsOutput(const json& choice) {
  if (!choice.is_object()) return false;
  if (HasText(choice, "text")) return true;
  const auto delta = choice.find("delta");
  return delta != choice.end() && delta->is_object() &&
         (HasText(*delta, "content") || HasText(*delta, "reasoning_content"));
}

std::string ErrorMessage(const json& event) {
  const auto error = event.find("error");
  if (error == event.end()) return "";
  if (error->is_object() && error->contains("message") &&
      (*error)["message"].is_string()) {
    return CutUtf8((*error)["message"].get<std::string>(), kMaxErrorBytes);
  }
  return CutUtf8(error->dump(-1, ' ', true, json::error_handler_t::replace),
                 kMaxErrorBytes);
}

}  // namespace

const char* OutcomeName(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::kFinished:
      return "finished";
    case OutcomeKind::kRejected:
      return "rejected";
    case OutcomeKind::kTimedOut:
      return "timed_out";
    case OutcomeKind::kFailed:
      break;
  }
  return "failed";
}

std::string CompletionBody(const TargetRequest& request,
                           const std::string& model) {
  std::string body = "{\"model\":";
  AppendJsonString(model, &body);
  body.append(",\"prompt\":");
  if (request.tokens.empty()) {
    AppendJsonString(request.text, &body);
  } else {
    char comma = '[';
    for (const uint32_t token : request.tokens) {
      body.push_back(comma);
      comma = ',';
      absl::StrAppend(&body, token);
    }
    body.push_back(']');
  }
  absl::StrAppend(&body, ",\"max_tokens\":", request.output_tokens,
                  ",\"ignore_eos\":true,\"temperature\":0,\"stream\":true,"
                  "\"stream_options\":{\"include_usage\":true}}");
  return body;
}

bool OpenAiStream::Take(absl::string_view data) {
  if (data == "[DONE]") {
    done_ = true;
    return false;
  }
  const json event = json::parse(data.begin(), data.end(), nullptr,
                                 /*allow_exceptions=*/false);
  if (!event.is_object()) {
    end_.error = "an event is no JSON object";
    return false;
  }
  if (const std::string error = ErrorMessage(event); !error.empty()) {
    end_.error = error;
  }
  const auto usage = event.find("usage");
  if (usage != event.end() && usage->is_object()) {
    end_.prompt_tokens = Count(*usage, "prompt_tokens");
    end_.output_tokens = Count(*usage, "completion_tokens");
    const auto details = usage->find("prompt_tokens_details");
    if (details != usage->end() && details->is_object()) {
      end_.cached_tokens = Count(*details, "cached_tokens");
    }
  }
  const auto choices = event.find("choices");
  if (choices == event.end() || !choices->is_array()) return false;
  for (const json& choice : *choices) {
    if (BringsOutput(choice)) return true;
  }
  return false;
}

TargetEnd OpenAiStream::End() const {
  TargetEnd end = end_;
  if (end.error.empty() && !done_) end.error = "the stream ended early";
  end.kind = end.error.empty() ? OutcomeKind::kFinished : OutcomeKind::kFailed;
  return end;
}

TargetEnd EndOfError(int http_status, absl::string_view body) {
  TargetEnd end;
  const json parsed = json::parse(body.begin(), body.end(), nullptr,
                                  /*allow_exceptions=*/false);
  std::string message = parsed.is_object() ? ErrorMessage(parsed) : "";
  if (message.empty()) message = CutUtf8(body, kMaxErrorBytes);
  end.error = absl::StrCat("HTTP ", http_status, ": ", message);
  end.kind = http_status == 429 || http_status == 503   ? OutcomeKind::kRejected
             : http_status == 408 || http_status == 504 ? OutcomeKind::kTimedOut
                                                        : OutcomeKind::kFailed;
  return end;
}

}  // namespace baton::load_generator
