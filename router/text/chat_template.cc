#include "router/text/chat_template.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/content_format.h"
#include "router/text/jinja/evaluator.h"
#include "router/text/jinja/json_value.h"
#include "router/text/jinja/objects.h"
#include "router/text/jinja/parser.h"
#include "router/text/tokenizer.h"

namespace baton::router {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

using Json = nlohmann::ordered_json;

absl::Status WithPrefix(const absl::Status& status) {
  return absl::Status(status.code(),
                      absl::StrCat("chat template: ", status.message()));
}

absl::Status Invalid(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("chat template: ", what));
}

// Where the value of `name` comes from: the variable's JSON, or null.
const Json* FindArgument(const Json& object, const std::string& name) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}

// The variables that the template's names stand for, by the names' numbers.
absl::StatusOr<std::vector<std::optional<jinja::Value>>> Variables(
    const ChatInput& input, const Json& messages, const Json& special_tokens,
    const jinja::Names& names, jinja::Run& run) {
  const Json add_generation_prompt = input.add_generation_prompt;
  std::vector<std::optional<jinja::Value>> variables(names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string& name = names.TextOf(static_cast<jinja::NameId>(i));
    const Json* json = FindArgument(input.arguments, name);
    if (json == nullptr) json = FindArgument(special_tokens, name);
    if (name == "messages") {
      json = &messages;
    } else if (json == nullptr && name == "tools") {
      json = &input.tools;
    } else if (json == nullptr && name == "documents") {
      json = &input.documents;
    } else if (json == nullptr && name == "add_generation_prompt") {
      json = &add_generation_prompt;
    } else if (json == nullptr && name == "tool_choice" &&
               !input.tool_choice.is_null()) {
      json = &input.tool_choice;
    }
    if (json != nullptr) {
      absl::StatusOr<jinja::Value> value = jinja::FromJson(run, *json);
      if (!value.ok()) {
        return absl::Status(value.status().code(),
                            absl::StrCat(name, ": ", value.status().message()));
      }
      variables[i] = *std::move(value);
    } else if (jinja::Object* const global = jinja::FindGlobal(name)) {
      variables[i] = jinja::Value::Of(global);
    }
  }
  return variables;
}

// The text of a part, or nothing for a part of another kind.
const std::string* TextOfPart(const Json& part) {
  if (part.is_string()) return &part.get_ref<const std::string&>();
  const Json* const type = FindArgument(part, "type");
  const Json* const text = FindArgument(part, "text");
  if (type == nullptr || *type != "text" || text == nullptr ||
      !text->is_string()) {
    return nullptr;
  }
  return &text->get_ref<const std::string&>();
}

bool HasContentList(const Json& messages) {
  for (const Json& message : messages) {
    const Json* const content = FindArgument(message, "content");
    if (content != nullptr && content->is_array()) return true;
  }
  return false;
}

}  // namespace

struct ChatTemplate::Source {
  jinja::TemplateNode node;
  bool takes_parts;

  static absl::StatusOr<std::unique_ptr<const Source>> Parse(
      absl::string_view text) {
    if (text.size() > kMaxSourceBytes) {
      return Invalid(absl::StrCat("the template has ", text.size(),
                                  " bytes, more than the ", kMaxSourceBytes,
                                  " that are allowed"));
    }
    if (!IsValidUtf8(text)) return Invalid("the template is not UTF-8");
    absl::StatusOr<jinja::TemplateNode> node = jinja::Parse(text);
    if (!node.ok()) return WithPrefix(node.status());
    const bool takes_parts = jinja::LoopsOverContent(*node);
    return std::make_unique<const Source>(
        Source{*std::move(node), takes_parts});
  }
};

ChatTemplate::ChatTemplate(std::unique_ptr<const Source> source,
                           std::unique_ptr<const Source> tool_use,
                           Json special_tokens)
    : default_(std::move(source)),
      tool_use_(std::move(tool_use)),
      special_tokens_(std::move(special_tokens)) {}

ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source, const Json& special_tokens) {
  BATON_ASSIGN_OR_RETURN(auto parsed, Source::Parse(source));
  return std::unique_ptr<ChatTemplate>(
      new ChatTemplate(std::move(parsed), nullptr, special_tokens));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source, absl::string_view tool_use,
    const Json& special_tokens) {
  BATON_ASSIGN_OR_RETURN(auto parsed, Source::Parse(source));
  BATON_ASSIGN_OR_RETURN(auto with_tools, Source::Parse(tool_use));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(
      std::move(parsed), std::move(with_tools), special_tokens));
}

const ChatTemplate::Source& ChatTemplate::For(const Json& tools) const {
  return tool_use_ != nullptr && !tools.is_null() ? *tool_use_ : *default_;
}

bool ChatTemplate::takes_content_parts() const { return default_->takes_parts; }

absl::StatusOr<std::string> ChatTemplate::Render(const ChatInput& input) const {
  if (!input.messages.is_array()) return Invalid("messages is not an array");
  if (!input.arguments.is_null() && !input.arguments.is_object()) {
    return Invalid("the template's arguments are not an object");
  }
  if (FindArgument(input.arguments, "messages") != nullptr) {
    return Invalid("an argument of the template cannot be called messages");
  }
  const Source& source = For(input.tools);
  std::optional<Json> flat;
  if (!source.takes_parts && HasContentList(input.messages)) {
    flat = FlattenTextParts(input.messages);
  }
  jinja::Run run(jinja::Limits{}, input.now);
  absl::StatusOr<std::vector<std::optional<jinja::Value>>> variables =
      Variables(input, flat.has_value() ? *flat : input.messages,
                special_tokens_, source.node.names, run);
  if (!variables.ok()) return WithPrefix(variables.status());
  jinja::Evaluator evaluator(source.node, run, *std::move(variables));
  absl::StatusOr<std::string> text = evaluator.Render();
  if (text.ok()) return text;
  if (run.raised()) return WithPrefix(text.status());
  return absl::Status(text.status().code(),
                      absl::StrCat("chat template: line ", run.error_line(),
                                   ": ", text.status().message()));
}

Json FlattenTextParts(Json messages) {
  if (!messages.is_array()) return messages;
  for (Json& message : messages) {
    const Json* const content = FindArgument(message, "content");
    if (content == nullptr || !content->is_array()) continue;
    std::string text;
    bool only_text = true;
    bool first = true;
    for (const Json& part : *content) {
      const std::string* const piece = TextOfPart(part);
      if (piece == nullptr) {
        only_text = false;
        break;
      }
      if (!first) text.push_back('\n');
      first = false;
      text += *piece;
    }
    if (only_text) message["content"] = std::move(text);
  }
  return messages;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadChatTemplate(
    const Tokenizer& tokenizer) {
  if (!tokenizer.chat_template().has_value()) {
    return absl::NotFoundError("the model has no chat template");
  }
  Json special_tokens = Json::object();
  for (const auto& [name, text] : tokenizer.special_token_texts()) {
    special_tokens[name] = text;
  }
  if (tokenizer.tool_use_template().has_value()) {
    return ChatTemplate::Parse(*tokenizer.chat_template(),
                               *tokenizer.tool_use_template(), special_tokens);
  }
  return ChatTemplate::Parse(*tokenizer.chat_template(), special_tokens);
}

}  // namespace baton::router
