#include "router/http/messages_request.h"

#include <optional>
#include <string>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/http/json_fields.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

// What `user` of a chat request may have. Clients put whole records there.
constexpr size_t kMaxUserBytes = 256;

absl::Status WrongType(const std::string& field, const char* wanted,
                       const json::value& value) {
  return InvalidField(
      field, absl::StrCat("must be ", wanted, ", it is ", TypeName(value)));
}

absl::StatusOr<std::string> NeededString(const JsonFields& fields,
                                         absl::string_view name) {
  BATON_ASSIGN_OR_RETURN(std::optional<std::string> value, fields.String(name));
  if (value.has_value()) return *std::move(value);
  return InvalidField(fields.FullName(name), "is missing");
}

absl::Status UnknownType(const JsonFields& fields, const std::string& type,
                         const char* known) {
  return InvalidField(
      fields.FullName("type"),
      absl::StrCat("is \"", type.substr(0, 64), "\"; Baton takes ", known));
}

json::object TextPart(absl::string_view text) {
  return {{"type", "text"},
          {"text", json::string_view(text.data(), text.size())}};
}

// Calls `read` with each block of a string (one block of text) or of an array.
template <typename Read>
absl::Status ForEachBlock(const JsonFields& fields, absl::string_view name,
                          Read read) {
  const std::string field = fields.FullName(name);
  const json::value* const content = fields.Find(name);
  if (content == nullptr) return InvalidField(field, "is missing");
  if (content->is_string()) {
    const json::object block = TextPart(absl::string_view(
        content->get_string().data(), content->get_string().size()));
    return read(JsonFields(&block, field + "."), std::string("text"));
  }
  if (!content->is_array()) {
    return WrongType(field, "a string or an array of blocks", *content);
  }
  const json::array& blocks = content->get_array();
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string where = absl::StrCat(field, "[", i, "]");
    if (!blocks[i].is_object()) {
      return WrongType(where, "an object", blocks[i]);
    }
    const JsonFields block(&blocks[i].get_object(), where + ".");
    BATON_ASSIGN_OR_RETURN(const std::string type, NeededString(block, "type"));
    BATON_RETURN_IF_ERROR(read(block, type));
  }
  return absl::OkStatus();
}

// Text alone, of blocks.
absl::StatusOr<json::array> TextParts(const JsonFields& fields,
                                      absl::string_view name) {
  json::array parts;
  BATON_RETURN_IF_ERROR(
      ForEachBlock(fields, name,
                   [&parts](const JsonFields& block,
                            const std::string& type) -> absl::Status {
                     if (type != "text")
                       return UnknownType(block, type, "text only");
                     BATON_ASSIGN_OR_RETURN(const std::string text,
                                            NeededString(block, "text"));
                     parts.push_back(TextPart(text));
                     return absl::OkStatus();
                   }));
  return parts;
}

// A single text is a string, as most requests have it.
json::value ContentOf(json::array parts) {
  if (parts.size() == 1) return parts[0].get_object().at("text");
  return parts;
}

// Reads a conversation into the messages of a chat request.
class ConversationReader final {
 public:
  explicit ConversationReader(json::array* messages) : messages_(*messages) {}

  // The last message is the assistant's: the answer goes on with it.
  bool goes_on() const { return goes_on_; }

  absl::Status Read(const JsonFields& fields) {
    BATON_RETURN_IF_ERROR(ReadSystem(fields));
    const json::value* const given = fields.Find("messages");
    if (given == nullptr) return InvalidField("messages", "is missing");
    if (!given->is_array()) return WrongType("messages", "an array", *given);
    const json::array& turns = given->get_array();
    if (turns.empty()) return InvalidField("messages", "is empty");
    std::string role;
    for (size_t i = 0; i < turns.size(); ++i) {
      const std::string where = absl::StrCat("messages[", i, "]");
      if (!turns[i].is_object()) {
        return WrongType(where, "an object", turns[i]);
      }
      const JsonFields turn(&turns[i].get_object(), where + ".");
      BATON_ASSIGN_OR_RETURN(role, NeededString(turn, "role"));
      if (role == "user") {
        BATON_RETURN_IF_ERROR(ReadUser(turn));
      } else if (role == "assistant") {
        BATON_RETURN_IF_ERROR(ReadAssistant(turn));
      } else if (role == "system") {
        BATON_RETURN_IF_ERROR(ReadLaterSystem(turn));
      } else {
        return InvalidField(
            turn.FullName("role"),
            absl::StrCat("is \"", role.substr(0, 64),
                         "\", it must be user, assistant or system"));
      }
    }
    goes_on_ = role == "assistant";
    if (goes_on_ && open_ &&
        messages_.back().get_object().contains("tool_calls")) {
      return InvalidField("messages",
                          "ends with a call of a tool, and what came of it "
                          "must be told");
    }
    EndMessage();
    return absl::OkStatus();
  }

 private:
  absl::Status ReadSystem(const JsonFields& fields) {
    if (fields.Find("system") == nullptr) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(json::array parts, TextParts(fields, "system"));
    if (parts.empty()) return absl::OkStatus();
    messages_.push_back(json::object(
        {{"role", "system"}, {"content", ContentOf(std::move(parts))}}));
    return absl::OkStatus();
  }

  // Many templates refuse a system that speaks later. Whoever reads what the
  // user says reads this, too.
  absl::Status ReadLaterSystem(const JsonFields& turn) {
    BATON_ASSIGN_OR_RETURN(const json::array parts, TextParts(turn, "content"));
    if (parts.empty()) return absl::OkStatus();
    MessageOf(messages_.empty() ? "system" : "user");
    for (const json::value& part : parts) parts_.push_back(part);
    return absl::OkStatus();
  }

  absl::Status ReadUser(const JsonFields& turn) {
    return ForEachBlock(
        turn, "content",
        [this](const JsonFields& block, const std::string& type) {
          if (type == "text") return ReadText("user", block);
          if (type == "tool_result") return ReadToolResult(block);
          return UnknownType(block, type, "text and tool_result");
        });
  }

  absl::Status ReadAssistant(const JsonFields& turn) {
    return ForEachBlock(turn, "content",
                        [this](const JsonFields& block,
                               const std::string& type) -> absl::Status {
                          if (type == "text")
                            return ReadText("assistant", block);
                          if (type == "thinking") return ReadThinking(block);
                          if (type == "tool_use") return ReadToolUse(block);
                          // Nobody can read it.
                          if (type == "redacted_thinking")
                            return absl::OkStatus();
                          return UnknownType(block, type,
                                             "text, thinking and tool_use");
                        });
  }

  absl::Status ReadText(const char* role, const JsonFields& block) {
    BATON_ASSIGN_OR_RETURN(const std::string text, NeededString(block, "text"));
    MessageOf(role);
    parts_.push_back(TextPart(text));
    return absl::OkStatus();
  }

  absl::Status ReadThinking(const JsonFields& block) {
    BATON_ASSIGN_OR_RETURN(const std::string text,
                           NeededString(block, "thinking"));
    if (text.empty()) return absl::OkStatus();
    json::value& thought = MessageOf("assistant")["reasoning_content"];
    if (!thought.is_string()) thought = json::string();
    thought.get_string().append(text);
    return absl::OkStatus();
  }

  absl::Status ReadToolUse(const JsonFields& block) {
    BATON_ASSIGN_OR_RETURN(const std::string id, NeededString(block, "id"));
    BATON_ASSIGN_OR_RETURN(const std::string name, NeededString(block, "name"));
    const json::value* const input = block.Find("input");
    if (input == nullptr || !input->is_object()) {
      return InvalidField(block.FullName("input"), "must be an object");
    }
    json::value& calls = MessageOf("assistant")["tool_calls"];
    if (!calls.is_array()) calls = json::array();
    calls.get_array().push_back(
        {{"id", id},
         {"type", "function"},
         {"function",
          {{"name", name}, {"arguments", json::serialize(*input)}}}});
    names_[id] = name;
    return absl::OkStatus();
  }

  absl::Status ReadToolResult(const JsonFields& block) {
    BATON_ASSIGN_OR_RETURN(const std::string id,
                           NeededString(block, "tool_use_id"));
    json::array parts;
    if (block.Find("content") != nullptr) {
      BATON_ASSIGN_OR_RETURN(parts, TextParts(block, "content"));
    }
    EndMessage();
    json::object message = {{"role", "tool"}, {"tool_call_id", id}};
    message["content"] =
        parts.empty() ? json::value("") : ContentOf(std::move(parts));
    // Some templates want to know whose answer it is.
    if (const json::value* const name = names_.if_contains(id)) {
      message["name"] = *name;
    }
    messages_.push_back(std::move(message));
    return absl::OkStatus();
  }

  // The message that what comes next of `role` belongs to.
  json::object& MessageOf(const char* role) {
    if (!open_ || messages_.back().get_object().at("role") != role) {
      EndMessage();
      messages_.push_back(json::object({{"role", role}, {"content", nullptr}}));
      open_ = true;
    }
    return messages_.back().get_object();
  }

  // Its texts are known.
  void EndMessage() {
    if (open_ && !parts_.empty()) {
      messages_.back().get_object()["content"] =
          ContentOf(std::exchange(parts_, {}));
    }
    open_ = false;
  }

  json::array& messages_;
  json::object names_;  // of functions, by the ids of calls
  bool open_ = false;   // the last message, which parts_ are of
  json::array parts_;
  bool goes_on_ = false;
};

absl::Status PutTools(const JsonFields& fields, json::object* chat) {
  const json::value* const tools = fields.Find("tools");
  if (tools == nullptr) return absl::OkStatus();
  if (!tools->is_array()) return WrongType("tools", "an array", *tools);
  json::array functions;
  for (const json::value& tool : tools->get_array()) {
    const std::string where = absl::StrCat("tools[", functions.size(), "]");
    if (!tool.is_object()) return WrongType(where, "an object", tool);
    const JsonFields given(&tool.get_object(), where + ".");
    BATON_ASSIGN_OR_RETURN(const auto type, given.String("type"));
    if (type.value_or("custom") != "custom") {
      return UnknownType(given, *type, "tools of the client's own (custom)");
    }
    BATON_ASSIGN_OR_RETURN(const std::string name, NeededString(given, "name"));
    const json::value* const schema = given.Find("input_schema");
    if (schema == nullptr || !schema->is_object()) {
      return InvalidField(given.FullName("input_schema"), "must be an object");
    }
    json::object function = {{"name", name}};
    BATON_ASSIGN_OR_RETURN(const auto description, given.String("description"));
    if (description.has_value()) function["description"] = *description;
    function["parameters"] = *schema;
    functions.push_back(
        {{"type", "function"}, {"function", std::move(function)}});
  }
  if (!functions.empty()) (*chat)["tools"] = std::move(functions);
  return absl::OkStatus();
}

absl::Status PutToolChoice(const JsonFields& fields, json::object* chat) {
  const json::value* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  if (!choice->is_object()) {
    return WrongType("tool_choice", "an object", *choice);
  }
  const JsonFields given(&choice->get_object(), "tool_choice.");
  BATON_ASSIGN_OR_RETURN(const std::string type, NeededString(given, "type"));
  if (type == "auto" || type == "none") {
    (*chat)["tool_choice"] = type;
  } else if (type == "any") {
    (*chat)["tool_choice"] = "required";
  } else if (type == "tool") {
    BATON_ASSIGN_OR_RETURN(const std::string name, NeededString(given, "name"));
    (*chat)["tool_choice"] = {{"type", "function"},
                              {"function", {{"name", name}}}};
  } else {
    return InvalidField("tool_choice.type",
                        absl::StrCat("is \"", type.substr(0, 64),
                                     "\", it must be auto, any, tool or none"));
  }
  BATON_ASSIGN_OR_RETURN(const auto alone,
                         given.Bool("disable_parallel_tool_use"));
  if (alone.value_or(false)) (*chat)["parallel_tool_calls"] = false;
  return absl::OkStatus();
}

// Whether the model is to think, where its template lets one choose, and
// whether that is shown. How long is up to the model.
absl::Status PutThinking(const JsonFields& fields, json::object* chat) {
  const json::value* const thinking = fields.Find("thinking");
  if (thinking == nullptr) return absl::OkStatus();
  if (!thinking->is_object()) {
    return WrongType("thinking", "an object", *thinking);
  }
  const JsonFields given(&thinking->get_object(), "thinking.");
  BATON_ASSIGN_OR_RETURN(const std::string type, NeededString(given, "type"));
  const bool thinks = type == "enabled" || type == "adaptive";
  if (!thinks && type != "disabled") {
    return InvalidField(
        "thinking.type",
        absl::StrCat("is \"", type.substr(0, 64),
                     "\", it must be enabled, adaptive or disabled"));
  }
  BATON_ASSIGN_OR_RETURN(const auto display, given.String("display"));
  if (display == "omitted") (*chat)["include_reasoning"] = false;
  json::value& arguments = (*chat)["chat_template_kwargs"];
  if (arguments.is_null()) arguments = json::object();
  // One that the client gave for its template is meant.
  if (arguments.is_object()) {
    arguments.get_object().emplace("enable_thinking", thinks);
  }
  return absl::OkStatus();
}

// output_config.effort, and output_config.format, or output_format as it was
// called before.
absl::Status PutOutputConfig(const JsonFields& fields, json::object* chat) {
  std::string where = "output_format";
  const json::value* format = fields.Find(where);
  if (const json::value* const config = fields.Find("output_config")) {
    if (!config->is_object()) {
      return WrongType("output_config", "an object", *config);
    }
    const JsonFields inner(&config->get_object(), "output_config.");
    BATON_ASSIGN_OR_RETURN(const auto effort, inner.String("effort"));
    // The field of chats, which a client may give as well, is meant.
    if (effort.has_value()) chat->emplace("reasoning_effort", *effort);
    if (const json::value* const newer = inner.Find("format")) {
      where = inner.FullName("format");
      format = newer;
    }
  }
  if (format == nullptr) return absl::OkStatus();
  if (!format->is_object()) return WrongType(where, "an object", *format);
  const JsonFields given(&format->get_object(), where + ".");
  BATON_ASSIGN_OR_RETURN(const std::string type, NeededString(given, "type"));
  if (type != "json_schema") return UnknownType(given, type, "json_schema");
  const json::value* const schema = given.Find("schema");
  if (schema == nullptr) {
    return InvalidField(given.FullName("schema"), "is missing");
  }
  (*chat)["response_format"] = {
      {"type", type},
      {"json_schema", {{"name", "answer"}, {"schema", *schema}}}};
  return absl::OkStatus();
}

absl::Status PutUser(const JsonFields& fields, json::object* chat) {
  const json::value* const metadata = fields.Find("metadata");
  if (metadata == nullptr) return absl::OkStatus();
  if (!metadata->is_object()) {
    return WrongType("metadata", "an object", *metadata);
  }
  const JsonFields given(&metadata->get_object(), "metadata.");
  BATON_ASSIGN_OR_RETURN(const auto user, given.String("user_id"));
  if (user.has_value()) (*chat)["user"] = CutUtf8(*user, kMaxUserBytes);
  return absl::OkStatus();
}

absl::Status RefuseServersTools(const JsonFields& fields) {
  for (const char* name : {"mcp_servers", "container"}) {
    const json::value* const value = fields.Find(name);
    if (value == nullptr) continue;
    if (value->is_array() && value->get_array().empty()) continue;
    return InvalidField(name, "is not supported");
  }
  return absl::OkStatus();
}

// The chat request that says the same.
absl::StatusOr<json::object> ChatOfMessages(const json::object& object) {
  const JsonFields fields(&object);
  BATON_RETURN_IF_ERROR(RefuseServersTools(fields));
  json::object chat = object;
  // What chat requests have under another name, or not.
  for (const char* name : {"messages",
                           "system",
                           "tools",
                           "tool_choice",
                           "parallel_tool_calls",
                           "stop_sequences",
                           "stop",
                           "thinking",
                           "metadata",
                           "output_config",
                           "output_format",
                           "response_format",
                           "max_completion_tokens",
                           "n",
                           "best_of",
                           "logprobs",
                           "top_logprobs",
                           "stream_options",
                           "separate_reasoning",
                           "add_generation_prompt"}) {
    chat.erase(name);
  }
  json::array messages;
  ConversationReader reader(&messages);
  BATON_RETURN_IF_ERROR(reader.Read(fields));
  chat["messages"] = std::move(messages);
  chat["continue_final_message"] = reader.goes_on();
  if (const json::value* const stop = fields.Find("stop_sequences")) {
    if (!stop->is_array())
      return WrongType("stop_sequences", "an array", *stop);
    chat["stop"] = *stop;
  }
  BATON_RETURN_IF_ERROR(PutTools(fields, &chat));
  BATON_RETURN_IF_ERROR(PutToolChoice(fields, &chat));
  BATON_RETURN_IF_ERROR(PutThinking(fields, &chat));
  BATON_RETURN_IF_ERROR(PutOutputConfig(fields, &chat));
  BATON_RETURN_IF_ERROR(PutUser(fields, &chat));
  return chat;
}

}  // namespace

absl::Status WithMessagesField(const absl::Status& status) {
  constexpr FieldAlias kAliases[] = {
      {.field = "messages", .alias = "messages", .alone = true},
      {.field = "continue_final_message", .alias = "messages"},
      {.field = "response_format.json_schema", .alias = "output_config.format"},
      {.field = "response_format", .alias = "output_config.format"},
      {.field = "stop_token_ids", .alias = "stop_token_ids"},
      {.field = "stop", .alias = "stop_sequences"},
      {.field = "user", .alias = "metadata.user_id"}};
  return WithFieldAlias(status, kAliases);
}

absl::StatusOr<ApiRequest> ParseMessagesRequest(absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(const json::object object, ParseJsonObject(body));
  BATON_ASSIGN_OR_RETURN(const json::object chat, ChatOfMessages(object));
  absl::StatusOr<ApiRequest> api = ReadChatRequest(chat);
  if (!api.ok()) return WithMessagesField(api.status());
  return api;
}

absl::StatusOr<TokenizeRequest> ParseCountTokensRequest(
    absl::string_view body) {
  BATON_ASSIGN_OR_RETURN(ApiRequest api, ParseMessagesRequest(body));
  return TokenizeRequest{.prompt = std::move(api.prompts.front()),
                         .add_special_tokens = false};
}

}  // namespace baton::router::http
