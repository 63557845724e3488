#include "router/http/responses_request.h"

#include <optional>
#include <string>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/http/json_fields.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

// What stands in the responses for a field that the request does not have.
constexpr std::pair<const char*, const char*> kEchoed[] = {
    {"instructions", "null"},
    {"max_output_tokens", "null"},
    {"metadata", "{}"},
    {"parallel_tool_calls", "true"},
    {"reasoning", R"({"effort":null,"summary":null})"},
    {"temperature", "null"},
    {"text", R"({"format":{"type":"text"}})"},
    {"tool_choice", R"("auto")"},
    {"tools", "[]"},
    {"top_p", "null"},
    {"user", "null"},
};

std::string Echo(const JsonFields& fields) {
  std::string out;
  for (const auto& [name, absent] : kEchoed) {
    const json::value* const value = fields.Find(name);
    absl::StrAppend(&out, ",\"", name,
                    "\":", value == nullptr ? absent : json::serialize(*value));
  }
  return out;
}

absl::Status RefuseWhatIsStored(const JsonFields& fields) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (fields.Find(name) != nullptr) {
      return InvalidField(name,
                          "is not supported, as nothing is stored: send the "
                          "whole conversation as input");
    }
  }
  if (fields.Find("prompt") != nullptr) {
    return InvalidField("prompt", "is not supported");
  }
  BATON_ASSIGN_OR_RETURN(const auto background, fields.Bool("background"));
  if (background.value_or(false)) {
    return InvalidField("background", "is not supported");
  }
  BATON_ASSIGN_OR_RETURN(const auto truncation, fields.String("truncation"));
  if (truncation.value_or("disabled") != "disabled") {
    return InvalidField("truncation", "must be disabled");
  }
  return absl::OkStatus();
}

// Reads the items of the input into messages.
class InputReader final {
 public:
  explicit InputReader(json::array* messages) : messages_(*messages) {}

  absl::Status Read(const JsonFields& fields) {
    BATON_ASSIGN_OR_RETURN(const auto instructions,
                           fields.String("instructions"));
    if (instructions.has_value()) AddSystem(*instructions);
    const json::value* const input = fields.Find("input");
    if (input == nullptr) return InvalidField("input", "is missing");
    if (input->is_string()) {
      Add("user", std::string(input->get_string()));
      return absl::OkStatus();
    }
    if (!input->is_array()) {
      return InvalidField("input",
                          absl::StrCat("must be a string or an array, it is ",
                                       TypeName(*input)));
    }
    const json::array& items = input->get_array();
    for (size_t i = 0; i < items.size(); ++i) {
      const std::string where = absl::StrCat("input[", i, "]");
      if (!items[i].is_object()) {
        return InvalidField(where, absl::StrCat("must be an object, it is ",
                                                TypeName(items[i])));
      }
      BATON_RETURN_IF_ERROR(
          ReadItem(JsonFields(&items[i].get_object(), where + ".")));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ReadItem(const JsonFields& item) {
    BATON_ASSIGN_OR_RETURN(const auto type, item.String("type"));
    const std::string kind = type.value_or("message");
    if (kind == "message") return ReadMessage(item);
    if (kind == "function_call") return ReadCall(item);
    if (kind == "function_call_output") return ReadOutput(item);
    if (kind == "reasoning") return ReadReasoning(item);
    return InvalidField(item.FullName("type"),
                        absl::StrCat("is \"", kind.substr(0, 64),
                                     "\", it must be message, function_call, "
                                     "function_call_output or reasoning"));
  }

  absl::Status ReadMessage(const JsonFields& item) {
    BATON_ASSIGN_OR_RETURN(const std::string role, Required(item, "role"));
    BATON_ASSIGN_OR_RETURN(const std::string text, TextOf(item, "content"));
    // Chat templates know no developers.
    if (role == "system" || role == "developer") {
      AddSystem(text);
    } else if (role == "user") {
      Add("user", text);
    } else if (role == "assistant") {
      json::object& message = Assistant();
      if (message.at("content").is_null()) {
        message["content"] = text;
      } else {
        Add("assistant", text);
      }
    } else {
      return InvalidField(item.FullName("role"),
                          absl::StrCat("is \"", role.substr(0, 64),
                                       "\", it must be user, assistant, system "
                                       "or developer"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadCall(const JsonFields& item) {
    BATON_ASSIGN_OR_RETURN(const std::string id, Required(item, "call_id"));
    BATON_ASSIGN_OR_RETURN(const std::string name, Required(item, "name"));
    BATON_ASSIGN_OR_RETURN(const std::string arguments,
                           Required(item, "arguments"));
    json::object& message = Assistant();
    json::value& calls = message["tool_calls"];
    if (!calls.is_array()) calls = json::array();
    calls.get_array().push_back(
        {{"id", id},
         {"type", "function"},
         {"function", {{"name", name}, {"arguments", arguments}}}});
    names_[id] = name;
    return absl::OkStatus();
  }

  absl::Status ReadOutput(const JsonFields& item) {
    BATON_ASSIGN_OR_RETURN(const std::string id, Required(item, "call_id"));
    BATON_ASSIGN_OR_RETURN(const std::string text, TextOf(item, "output"));
    json::object& message = Add("tool", text);
    message["tool_call_id"] = id;
    // Some templates want to know whose answer it is.
    if (const json::value* const name = names_.if_contains(id)) {
      message["name"] = *name;
    }
    return absl::OkStatus();
  }

  // What is shown of it, where there is more than a summary.
  absl::Status ReadReasoning(const JsonFields& item) {
    if (item.Find("content") == nullptr) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::string text, TextOf(item, "content"));
    if (text.empty()) return absl::OkStatus();
    // It comes before what else there is of a turn.
    messages_.push_back(json::object({{"role", "assistant"},
                                      {"content", nullptr},
                                      {"reasoning_content", text}}));
    return absl::OkStatus();
  }

  static absl::StatusOr<std::string> Required(const JsonFields& item,
                                              absl::string_view name) {
    BATON_ASSIGN_OR_RETURN(std::optional<std::string> value, item.String(name));
    if (value.has_value()) return *std::move(value);
    return InvalidField(item.FullName(name), "is missing");
  }

  // Of a string, or an array of parts that are text.
  static absl::StatusOr<std::string> TextOf(const JsonFields& item,
                                            absl::string_view name) {
    const std::string field = item.FullName(name);
    const json::value* const value = item.Find(name);
    if (value == nullptr) return InvalidField(field, "is missing");
    if (value->is_string()) return std::string(value->get_string());
    if (!value->is_array()) {
      return InvalidField(field, "must be a string or an array of parts");
    }
    std::string text;
    const json::array& parts = value->get_array();
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string where = absl::StrCat(field, "[", i, "]");
      if (!parts[i].is_object()) return InvalidField(where, "is not an object");
      const JsonFields part(&parts[i].get_object(), where + ".");
      BATON_ASSIGN_OR_RETURN(const std::string type, Required(part, "type"));
      const bool refusal = type == "refusal";
      if (type != "input_text" && type != "output_text" && type != "text" &&
          type != "reasoning_text" && !refusal) {
        return InvalidField(part.FullName("type"),
                            absl::StrCat("is \"", type.substr(0, 64),
                                         "\"; Baton takes text only"));
      }
      BATON_ASSIGN_OR_RETURN(const std::string piece,
                             Required(part, refusal ? "refusal" : "text"));
      text.append(piece);
    }
    return text;
  }

  json::object& Add(absl::string_view role, absl::string_view text) {
    messages_.push_back(json::object(
        {{"role", json::string_view(role.data(), role.size())},
         {"content", json::string_view(text.data(), text.size())}}));
    return messages_.back().get_object();
  }

  // Templates want what the system says in one message, the first one.
  void AddSystem(absl::string_view text) {
    if (messages_.size() == 1 && RoleOfLast() == "system") {
      json::string& content = messages_[0].get_object()["content"].get_string();
      content.append("\n\n");
      content.append(json::string_view(text.data(), text.size()));
      return;
    }
    Add("system", text);
  }

  // The message that the model's next item belongs to: what it thought, said
  // and called in one turn is one message.
  json::object& Assistant() {
    if (messages_.empty() || RoleOfLast() != "assistant") {
      messages_.push_back(
          json::object({{"role", "assistant"}, {"content", nullptr}}));
    }
    return messages_.back().get_object();
  }

  json::string_view RoleOfLast() const {
    return messages_.back().get_object().at("role").get_string();
  }

  json::array& messages_;
  json::object names_;  // of functions, by the ids of calls
};

// {"type": "function", "name": ..., ...} as chat requests have it.
json::object FunctionOf(const json::object& flat) {
  json::object function = flat;
  function.erase("type");
  return {{"type", "function"}, {"function", std::move(function)}};
}

absl::Status TranslateTools(const JsonFields& fields, json::object* chat) {
  const json::value* const tools = fields.Find("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) {
    return InvalidField(
        "tools", absl::StrCat("must be an array, it is ", TypeName(*tools)));
  }
  json::array functions;
  for (const json::value& tool : tools->get_array()) {
    const std::string where = absl::StrCat("tools[", functions.size(), "]");
    if (!tool.is_object()) return InvalidField(where, "is not an object");
    const JsonFields given(&tool.get_object(), where + ".");
    BATON_ASSIGN_OR_RETURN(const auto type, given.String("type"));
    if (type != "function") {
      return InvalidField(given.FullName("type"),
                          type.has_value()
                              ? absl::StrCat("is \"", type->substr(0, 64),
                                             "\"; Baton knows function")
                              : "is missing");
    }
    BATON_ASSIGN_OR_RETURN(const auto name, given.String("name"));
    if (!name.has_value()) {
      return InvalidField(given.FullName("name"), "is missing");
    }
    functions.push_back(FunctionOf(tool.get_object()));
  }
  if (!functions.empty()) (*chat)["tools"] = std::move(functions);
  return absl::OkStatus();
}

absl::Status TranslateToolChoice(const JsonFields& fields, json::object* chat) {
  const json::value* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  const json::object* const object = choice->if_object();
  if (object == nullptr) {
    (*chat)["tool_choice"] = *choice;
    return absl::OkStatus();
  }
  const JsonFields given(object, "tool_choice.");
  BATON_ASSIGN_OR_RETURN(const auto type, given.String("type"));
  if (type != "function") {
    return InvalidField("tool_choice",
                        "must be none, auto, required or a function's name "
                        "({\"type\": \"function\", \"name\": ...})");
  }
  (*chat)["tool_choice"] = FunctionOf(*object);
  return absl::OkStatus();
}

// text.format, whose schema lies beside its type.
absl::Status TranslateFormat(const JsonFields& fields, json::object* chat) {
  const json::value* const text = fields.Find("text");
  if (text == nullptr) return absl::OkStatus();
  if (!text->is_object()) {
    return InvalidField(
        "text", absl::StrCat("must be an object, it is ", TypeName(*text)));
  }
  const json::value* const format = text->get_object().if_contains("format");
  if (format == nullptr || format->is_null()) return absl::OkStatus();
  if (!format->is_object()) {
    return InvalidField("text.format", absl::StrCat("must be an object, it is ",
                                                    TypeName(*format)));
  }
  json::object schema = format->get_object();
  const json::value type = schema["type"];
  json::object wanted = {{"type", type}};
  if (type.is_string() && type.get_string() == "json_schema") {
    schema.erase("type");
    wanted["json_schema"] = std::move(schema);
  }
  (*chat)["response_format"] = std::move(wanted);
  return absl::OkStatus();
}

// How long the model is to think; what is shown of that is not for it to say.
absl::Status TranslateReasoning(const JsonFields& fields, json::object* chat) {
  const json::value* const reasoning = fields.Find("reasoning");
  if (reasoning == nullptr) return absl::OkStatus();
  if (!reasoning->is_object()) {
    return InvalidField("reasoning", absl::StrCat("must be an object, it is ",
                                                  TypeName(*reasoning)));
  }
  const JsonFields given(&reasoning->get_object(), "reasoning.");
  BATON_ASSIGN_OR_RETURN(const auto effort, given.String("effort"));
  if (effort.has_value()) (*chat)["reasoning_effort"] = *effort;
  return absl::OkStatus();
}

// The log-probabilities that `include` asks for.
absl::Status TranslateInclude(const JsonFields& fields, json::object* chat) {
  const json::value* const include = fields.Find("include");
  chat->erase("top_logprobs");
  if (include == nullptr) return absl::OkStatus();
  if (!include->is_array()) {
    return InvalidField("include", absl::StrCat("must be an array, it is ",
                                                TypeName(*include)));
  }
  for (const json::value& what : include->get_array()) {
    if (what != "message.output_text.logprobs") continue;
    (*chat)["logprobs"] = true;
    if (const json::value* const top = fields.Find("top_logprobs")) {
      (*chat)["top_logprobs"] = *top;
    }
  }
  return absl::OkStatus();
}

// The chat request that says the same.
absl::StatusOr<json::object> ChatOf(const json::object& object) {
  const JsonFields fields(&object);
  BATON_RETURN_IF_ERROR(RefuseWhatIsStored(fields));
  json::object chat = object;
  // What chat requests have under another name, or not.
  for (const char* name :
       {"input", "instructions", "text", "tools", "tool_choice", "include",
        "max_output_tokens", "max_tokens", "max_completion_tokens", "n",
        "logprobs", "stream_options", "messages", "response_format",
        "reasoning_effort"}) {
    chat.erase(name);
  }
  json::array messages;
  BATON_RETURN_IF_ERROR(InputReader(&messages).Read(fields));
  chat["messages"] = std::move(messages);
  if (const json::value* const most = fields.Find("max_output_tokens")) {
    chat["max_completion_tokens"] = *most;
  }
  BATON_RETURN_IF_ERROR(TranslateTools(fields, &chat));
  BATON_RETURN_IF_ERROR(TranslateToolChoice(fields, &chat));
  BATON_RETURN_IF_ERROR(TranslateFormat(fields, &chat));
  BATON_RETURN_IF_ERROR(TranslateReasoning(fields, &chat));
  BATON_RETURN_IF_ERROR(TranslateInclude(fields, &chat));
  return chat;
}

}  // namespace

absl::Status WithResponsesField(const absl::Status& status) {
  constexpr FieldAlias kAliases[] = {
      {.field = "messages", .alias = "input", .alone = true},
      {.field = "max_completion_tokens", .alias = "max_output_tokens"},
      {.field = "response_format.json_schema", .alias = "text.format"},
      {.field = "response_format", .alias = "text.format"}};
  return WithFieldAlias(status, kAliases);
}

absl::StatusOr<ApiRequest> ParseResponsesRequest(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  BATON_ASSIGN_OR_RETURN(const json::object chat, ChatOf(object));
  absl::StatusOr<ApiRequest> api = ReadChatRequest(chat);
  if (!api.ok()) return WithResponsesField(api.status());
  api->echoed_fields = Echo(JsonFields(&object));
  return api;
}

}  // namespace baton::router::http
