#include "router/tool_calls/text_parameters.h"

#include "common/json_shape.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;

// As schemas are elsewhere, or larger.
constexpr JsonBounds kSchemaBounds = {
    .max_depth = 64, .max_values = 1 << 18, .max_members = 1024};

struct Types {
  bool text = false;
  bool null = false;
  bool other = false;

  void Add(const Types& more) {
    text |= more.text;
    null |= more.null;
    other |= more.other;
  }
};

Types NamedType(const Json& name) {
  return {.text = name == "string",
          .null = name == "null",
          .other = name != "string" && name != "null"};
}

Types TypeOfValue(const Json& value) {
  return {.text = value.is_string(),
          .null = value.is_null(),
          .other = !value.is_string() && !value.is_null()};
}

Types TypesOf(const Json& schema) {
  Types types;
  if (!schema.is_object()) return {.other = true};
  if (const auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) return NamedType(*type);
    for (const Json& name : *type) types.Add(NamedType(name));
    return types;
  }
  if (const auto value = schema.find("const"); value != schema.end()) {
    return TypeOfValue(*value);
  }
  if (const auto values = schema.find("enum");
      values != schema.end() && values->is_array()) {
    for (const Json& value : *values) types.Add(TypeOfValue(value));
    return types;
  }
  for (const char* const name : {"anyOf", "oneOf"}) {
    const auto parts = schema.find(name);
    if (parts == schema.end() || !parts->is_array()) continue;
    for (const Json& part : *parts) types.Add(TypesOf(part));
    return types;
  }
  return {.other = true};
}

}  // namespace

ValueKind KindOfValue(const Json& schema) {
  const Types types = TypesOf(schema);
  if (types.other || !types.text) return ValueKind::kJson;
  return types.null ? ValueKind::kTextOrNull : ValueKind::kText;
}

TextParameters TextParametersOf(const std::string& parameters) {
  TextParameters texts;
  // Before it is parsed: what is nested deeply takes the stack.
  if (!CheckJsonBounds(parameters, kSchemaBounds).ok()) return texts;
  const Json schema =
      Json::parse(parameters, nullptr, /*allow_exceptions=*/false);
  if (!schema.is_object()) return texts;
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return texts;
  for (const auto& [name, value] : properties->items()) {
    const ValueKind kind = KindOfValue(value);
    if (kind != ValueKind::kJson) texts.emplace(name, kind);
  }
  return texts;
}

}  // namespace baton::router
