#include "router/http/tool_use.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/invalid_field.h"

namespace baton::router::http {
namespace {

constexpr size_t kMaxTools = 1024;

const json::value* MemberOf(const json::value* object, const char* name) {
  if (object == nullptr || !object->is_object()) return nullptr;
  return object->get_object().if_contains(name);
}

// The name of {"type": "function", "function": {"name": ...}}, if it is that.
std::optional<std::string> FunctionName(const json::value& value) {
  const json::value* const name =
      MemberOf(MemberOf(&value, "function"), "name");
  if (name == nullptr || !name->is_string() || name->get_string().empty()) {
    return std::nullopt;
  }
  return std::string(name->get_string());
}

struct Tool {
  std::string name;
  std::string parameters;  // JSON; empty: none given
};

// Those that are functions; others are the template's affair alone.
absl::StatusOr<std::vector<Tool>> ReadFunctions(const JsonFields& fields) {
  std::vector<Tool> tools;
  const json::value* const given = fields.Find("tools");
  if (given == nullptr || !given->is_array()) return tools;
  if (given->get_array().size() > kMaxTools) {
    return InvalidField(
        "tools", absl::StrCat("has ", given->get_array().size(),
                              " tools, at most ", kMaxTools, " are allowed"));
  }
  for (const json::value& tool : given->get_array()) {
    std::optional<std::string> name = FunctionName(tool);
    if (!name.has_value()) continue;
    const json::value* const parameters =
        MemberOf(MemberOf(&tool, "function"), "parameters");
    const bool none = parameters == nullptr || parameters->is_null();
    tools.push_back({.name = *std::move(name),
                     .parameters = none ? "" : json::serialize(*parameters)});
  }
  return tools;
}

enum class CallChoice { kNone, kAuto, kRequired };

// `only`: the one that is to be called, if one is named.
absl::StatusOr<CallChoice> ReadChoice(const JsonFields& fields,
                                      std::optional<std::string>* only) {
  const json::value* const choice = fields.Find("tool_choice");
  if (choice == nullptr) return CallChoice::kAuto;
  if (choice->is_string()) {
    if (choice->get_string() == "none") return CallChoice::kNone;
    if (choice->get_string() == "auto") return CallChoice::kAuto;
    if (choice->get_string() == "required") return CallChoice::kRequired;
  } else if (*only = FunctionName(*choice); only->has_value()) {
    return CallChoice::kRequired;
  }
  return InvalidField("tool_choice",
                      "must be none, auto, required or a function's name "
                      "({\"type\": \"function\", \"function\": {\"name\": "
                      "...}})");
}

}  // namespace

TextsOfTools TextsOf(const ToolUse& use) {
  TextsOfTools all;
  for (size_t i = 0; i < use.names.size(); ++i) {
    TextParameters texts = TextParametersOf(use.parameters[i]);
    if (!texts.empty()) all[use.names[i]] = std::move(texts);
  }
  return all;
}

absl::Status ReadTools(const JsonFields& fields, ToolUse* use,
                       v1::GenerateRequest* out) {
  BATON_ASSIGN_OR_RETURN(std::vector<Tool> tools, ReadFunctions(fields));
  BATON_ASSIGN_OR_RETURN(const auto parallel,
                         fields.Bool("parallel_tool_calls"));
  std::optional<std::string> only;
  BATON_ASSIGN_OR_RETURN(const CallChoice choice, ReadChoice(fields, &only));
  if (choice == CallChoice::kNone) return absl::OkStatus();
  if (only.has_value()) {
    std::erase_if(tools, [&](const Tool& tool) { return tool.name != *only; });
  }
  use->wanted = !tools.empty();
  for (const Tool& tool : tools) {
    use->names.push_back(tool.name);
    use->parameters.push_back(tool.parameters);
  }
  if (choice == CallChoice::kAuto) return absl::OkStatus();
  if (tools.empty()) {
    return InvalidField("tool_choice",
                        "asks for a call, and tools has nothing to call");
  }
  if (out->has_response_format()) {
    return InvalidField("tool_choice",
                        "asks for a call, and the answer is to be something "
                        "else");
  }
  v1::ResponseFormat::ToolCalls* const calls =
      out->mutable_response_format()->mutable_tool_calls();
  for (Tool& tool : tools) {
    v1::ResponseFormat::ToolCalls::Tool* const wire = calls->add_tools();
    wire->set_name(std::move(tool.name));
    wire->set_parameters(std::move(tool.parameters));
  }
  calls->set_several(!only.has_value() && parallel.value_or(true));
  return absl::OkStatus();
}

}  // namespace baton::router::http
