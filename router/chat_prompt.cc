#include "router/chat_prompt.h"

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/json.h"
#include "common/json_shape.h"
#include "common/stable_hash.h"
#include "common/status_macros.h"
#include "router/harmony/harmony_format.h"
#include "router/harmony/harmony_stream.h"
#include "router/invalid_field.h"
#include "router/text/chat_template.h"
#include "router/tool_calls/tool_call_format.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMessages = 4096;
// A conversation with tools has far less of each.
constexpr JsonBounds kMessageBounds = {
    .max_depth = 64, .max_values = 1 << 18, .max_members = 1024};

absl::StatusOr<Json> ParseField(const char* field, const std::string& text) {
  if (text.empty()) return Json(nullptr);
  if (absl::Status shape = CheckJsonBounds(text, kMessageBounds); !shape.ok()) {
    return InvalidField(field, shape.message());
  }
  Json value = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return InvalidField(field, "is not JSON");
  return value;
}

// Content is a string, null, absent, or parts of text.
absl::Status CheckContent(const std::string& name, const Json& content) {
  if (content.is_null() || content.is_string()) return absl::OkStatus();
  if (!content.is_array()) {
    return InvalidField(name, "must be a string or an array of parts");
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const Json& part = content[i];
    const std::string part_name = absl::StrCat(name, "[", i, "]");
    if (!part.is_object()) return InvalidField(part_name, "is not an object");
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) {
      return InvalidField(part_name + ".type", "must be a string");
    }
    if (*type != "text") {
      return InvalidField(
          part_name + ".type",
          absl::StrCat("is \"", type->get<std::string>(),
                       "\"; only parts of type \"text\" are supported"));
    }
    const auto text = part.find("text");
    if (text == part.end() || !text->is_string()) {
      return InvalidField(part_name + ".text", "must be a string");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMessages(const Json& messages) {
  if (!messages.is_array()) return InvalidField("messages", "must be an array");
  if (messages.empty()) return InvalidField("messages", "is empty");
  if (messages.size() > kMaxMessages) {
    return InvalidField(
        "messages", absl::StrCat("has ", messages.size(), " messages, at most ",
                                 kMaxMessages, " are allowed"));
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string name = absl::StrCat("messages[", i, "]");
    const Json& message = messages[i];
    if (!message.is_object()) return InvalidField(name, "is not an object");
    const auto role = message.find("role");
    if (role == message.end() || !role->is_string()) {
      return InvalidField(name + ".role", "must be a string");
    }
    const auto content = message.find("content");
    if (content == message.end()) continue;
    BATON_RETURN_IF_ERROR(CheckContent(name + ".content", *content));
  }
  return absl::OkStatus();
}

// Calls visit(arguments) for those of each call that has some.
void ForCallArguments(Json* messages,
                      absl::FunctionRef<void(Json& arguments)> visit) {
  for (Json& message : *messages) {
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array()) continue;
    for (Json& call : *calls) {
      if (!call.is_object() || !call.contains("function")) continue;
      Json& function = call["function"];
      if (!function.is_object() || !function.contains("arguments")) continue;
      visit(function["arguments"]);
    }
  }
}

// OpenAI's API has the arguments of calls as JSON in a string; templates want
// them as what they are, as Hugging Face's conversations have them. What is not
// JSON of an object stays as it is. Gives what was read, one for each call.
std::vector<std::optional<std::string>> ReadCallArguments(Json* messages) {
  std::vector<std::optional<std::string>> texts;
  ForCallArguments(messages, [&](Json& arguments) {
    std::optional<std::string>& read = texts.emplace_back();
    if (!arguments.is_string()) return;
    const std::string& text = arguments.get_ref<const std::string&>();
    if (!CheckJsonBounds(text, kMessageBounds).ok()) return;
    Json parsed = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!parsed.is_object()) return;
    read = text;
    arguments = std::move(parsed);
  });
  return texts;
}

// The other way around. Whether there was any.
bool WriteCallArguments(const std::vector<std::optional<std::string>>& texts,
                        Json* messages) {
  bool any = false;
  size_t call = 0;
  ForCallArguments(messages, [&](Json& arguments) {
    const size_t i = call++;
    if (i >= texts.size() || !texts[i].has_value()) return;
    arguments = *texts[i];
    any = true;
  });
  return any;
}

// What the assistant wrote before, where it comes as it was written (of clients
// of gRPC): thoughts are told from content.
void TellApart(Json* message) {
  const auto content = message->find("content");
  if (content == message->end() || !content->is_string()) return;
  const std::string text = content->get<std::string>();
  if (!absl::StartsWith(text, kHarmonyChannel)) return;
  HarmonyStream stream(kHarmonyRole, {});
  std::vector<AnswerEvent> events = stream.Push(text);
  for (AnswerEvent& event : stream.Finish()) {
    events.push_back(std::move(event));
  }
  std::string said;
  std::string thought;
  for (const AnswerEvent& event : events) {
    const bool reasoning = event.kind == AnswerEvent::Kind::kReasoning;
    (reasoning ? thought : said).append(event.text);
  }
  *content = said;
  if (!thought.empty() && !message->contains("reasoning_content")) {
    (*message)["reasoning_content"] = thought;
  }
}

// Harmony's templates ask what a message has, not whether there is anything in
// it. (A string is never empty() here.)
void DropWhatSaysNothing(Json* message) {
  for (const char* name : {"content", "thinking", "tool_calls"}) {
    const auto field = message->find(name);
    if (field != message->end() && field->empty()) message->erase(field);
  }
}

// What the assistant thought before, as Harmony's templates call it. Where it
// also said something before a call, they refuse both.
void ShapeForHarmony(Json* messages) {
  for (Json& message : *messages) {
    DropWhatSaysNothing(&message);
    if (message["role"] != "assistant") continue;
    TellApart(&message);
    if (message.contains("thinking")) continue;
    const auto content = message.find("content");
    if (message.contains("tool_calls") && content != message.end() &&
        !content->empty() && *content != "") {
      continue;
    }
    for (const char* name : {"reasoning_content", "reasoning"}) {
      const auto thought = message.find(name);
      if (thought == message.end() || !thought->is_string()) continue;
      const std::string text = thought->get<std::string>();
      if (!text.empty()) message["thinking"] = text;
      break;
    }
  }
}

// Whether `result`, which came `index`-th behind the calls, is that of the
// `number`-th of them.
bool IsResultOf(const Json& result, size_t index, const Json& call,
                size_t number) {
  const auto wanted = result.find("tool_call_id");
  if (wanted == result.end() || !wanted->is_string()) return index == number;
  const auto id = call.is_object() ? call.find("id") : call.end();
  return id != call.end() && *id == *wanted;
}

// Harmony's templates show the first call of a message, and give a result the
// name of the last call before it: a message of several calls becomes one of
// each, with its result behind it.
Json OneCallAMessage(Json messages) {
  Json out = Json::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const auto found = messages[i].find("tool_calls");
    if (found == messages[i].end() || !found->is_array() || found->size() < 2) {
      out.push_back(std::move(messages[i]));
      continue;
    }
    const Json calls = std::move(*found);
    size_t end = i + 1;
    while (end < messages.size() && messages[end]["role"] == "tool") ++end;
    std::vector<bool> taken(end - i - 1, false);
    for (size_t k = 0; k < calls.size(); ++k) {
      Json message = {{"role", "assistant"}};
      if (k == 0) message = std::move(messages[i]);
      message["tool_calls"] = Json::array({calls[k]});
      out.push_back(std::move(message));
      for (size_t r = 0; r < taken.size(); ++r) {
        if (taken[r] || !IsResultOf(messages[i + 1 + r], r, calls[k], k)) {
          continue;
        }
        taken[r] = true;
        out.push_back(std::move(messages[i + 1 + r]));
      }
    }
    for (size_t r = 0; r < taken.size(); ++r) {
      if (!taken[r]) out.push_back(std::move(messages[i + 1 + r]));
    }
    i = end - 1;
  }
  return out;
}

absl::StatusOr<Json> ParseArray(const char* field, const std::string& text) {
  BATON_ASSIGN_OR_RETURN(Json value, ParseField(field, text));
  if (value.is_null()) return value;
  if (!value.is_array()) return InvalidField(field, "must be an array");
  // As clients do: no tools and an empty list of them are the same.
  if (value.empty()) return Json(nullptr);
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_object()) {
      return InvalidField(absl::StrCat(field, "[", i, "]"), "is not an object");
    }
  }
  return value;
}

// Marks where the text of the last message ends; returns the mark, which no
// conversation can have. Templates may trim what stands there, but not what
// comes before.
absl::StatusOr<std::string> MarkEnd(const v1::ChatPrompt& chat,
                                    Json* messages) {
  const Hash128 hash = StableHash(std::as_bytes(std::span(chat.messages())));
  const std::string mark =
      absl::StrFormat("[goes on %016x%016x]", hash.high, hash.low);
  Json* content = &messages->back()["content"];
  if (content->is_array() && !content->empty()) {
    content = &content->back()["text"];
  }
  if (!content->is_string()) {
    return InvalidField("continue_final_message",
                        "is set, and the last message has no text");
  }
  content->get_ref<std::string&>().append(mark);
  return mark;
}

// What of a rendering comes before the mark.
absl::StatusOr<std::string> UpToMark(const std::string& text,
                                     const std::string& mark) {
  const size_t end = text.rfind(mark);
  if (end == std::string::npos) {
    return InvalidField("continue_final_message",
                        "is set, and this model's chat template does not show "
                        "the last message as it is");
  }
  return absl::StrReplaceAll(absl::string_view(text).substr(0, end),
                             {{mark, ""}});
}

}  // namespace

absl::StatusOr<std::string> RenderChat(const v1::ChatPrompt& chat,
                                       const ServedModel& model,
                                       absl::Time now) {
  if (model.chat_template == nullptr) {
    return InvalidField(
        "messages",
        absl::StrCat("cannot be used: model \"", model.name,
                     "\" has no chat template",
                     model.why_no_chat.empty() ? "" : ": ", model.why_no_chat));
  }
  ChatInput input;
  BATON_ASSIGN_OR_RETURN(input.messages,
                         ParseField("messages", chat.messages()));
  BATON_RETURN_IF_ERROR(CheckMessages(input.messages));
  const std::vector<std::optional<std::string>> arguments =
      ReadCallArguments(&input.messages);
  if (model.harmony) {
    ShapeForHarmony(&input.messages);
    input.messages = OneCallAMessage(std::move(input.messages));
  }
  BATON_ASSIGN_OR_RETURN(input.tools, ParseArray("tools", chat.tools()));
  // Members sorted by name, as the code beside such models does before it
  // renders.
  if (model.tool_calls == ToolCallFormat::kKimi) {
    input.tools = Json(nlohmann::json(input.tools));
  }
  BATON_ASSIGN_OR_RETURN(input.documents,
                         ParseArray("documents", chat.documents()));
  BATON_ASSIGN_OR_RETURN(input.tool_choice,
                         ParseField("tool_choice", chat.tool_choice()));
  BATON_ASSIGN_OR_RETURN(
      input.arguments,
      ParseField("chat_template_kwargs", chat.template_arguments()));
  if (!input.arguments.is_null() && !input.arguments.is_object()) {
    return InvalidField("chat_template_kwargs", "must be an object");
  }
  std::string mark;
  if (chat.continue_final_message()) {
    BATON_ASSIGN_OR_RETURN(mark, MarkEnd(chat, &input.messages));
  }
  input.add_generation_prompt = !chat.omit_generation_prompt() && mark.empty();
  input.now = now;
  absl::StatusOr<std::string> text = model.chat_template->Render(input);
  // Some add arguments to other texts, as DeepSeek's do.
  if (absl::IsInvalidArgument(text.status()) &&
      WriteCallArguments(arguments, &input.messages)) {
    absl::StatusOr<std::string> other = model.chat_template->Render(input);
    if (other.ok()) text = std::move(other);
  }
  if (text.ok()) return mark.empty() ? text : UpToMark(*text, mark);
  // A rendering's bounds are no matter of load: trying again cannot help.
  if (absl::IsInvalidArgument(text.status()) ||
      absl::IsResourceExhausted(text.status())) {
    return WithField("messages",
                     absl::InvalidArgumentError(text.status().message()));
  }
  return text.status();
}

}  // namespace baton::router
