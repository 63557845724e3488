#include "router/output_format/schema_keywords.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using Keywords = std::map<absl::string_view, Keyword>;

Keywords MakeKeywords() {
  Keywords all;
  const auto add = [&all](KeywordKind kind, JsonTypes types,
                          std::initializer_list<absl::string_view> names) {
    for (const absl::string_view name : names) all[name] = {name, kind, types};
  };
  // "discriminator" and "example" are OpenAPI's: a hint where to look first,
  // and what "examples" says. What is within a string ("contentMediaType" and
  // alike), validators do not look at by JSON Schema's own words.
  add(KeywordKind::kAnnotation, {},
      {"$anchor", "$comment", "$defs", "$id", "$schema", "contentEncoding",
       "contentMediaType", "contentSchema", "default", "definitions",
       "deprecated", "description", "discriminator", "example", "examples",
       "readOnly", "title", "writeOnly"});
  // OpenAPI 3.0 has "nullable": null as one type more.
  add(KeywordKind::kType, {}, {"nullable", "type"});
  add(KeywordKind::kCombination, {},
      {"$ref", "allOf", "anyOf", "oneOf", "unevaluatedProperties"});
  add(KeywordKind::kValues, {}, {"const", "enum"});
  add(KeywordKind::kConstraint, Only(JsonType::kObject),
      {"additionalProperties", "maxProperties", "minProperties",
       "patternProperties", "properties", "propertyNames", "required"});
  add(KeywordKind::kConstraint, Only(JsonType::kArray),
      {"additionalItems", "items", "maxItems", "minItems", "prefixItems",
       "uniqueItems"});
  add(KeywordKind::kConstraint, Only(JsonType::kString),
      {"maxLength", "minLength", "pattern"});
  add(KeywordKind::kConstraint, NumberTypes(),
      {"exclusiveMaximum", "exclusiveMinimum", "maximum", "minimum",
       "multipleOf"});
  // OpenAPI has formats of numbers.
  add(KeywordKind::kConstraint, NumberTypes() | Only(JsonType::kString),
      {"format"});
  return all;
}

}  // namespace

Keyword FindKeyword(absl::string_view name) {
  static const auto* keywords = new Keywords(MakeKeywords());
  const auto found = keywords->find(name);
  if (found != keywords->end()) return found->second;
  // Extensions, which say nothing to those who do not know them.
  if (absl::StartsWith(name, "x-")) return {name, KeywordKind::kAnnotation, {}};
  return {name};
}

absl::StatusOr<ElementKeywords> FindElementKeywords(const SchemaNode& schema) {
  const SchemaJson* const items = schema.Find("items");
  if (items == nullptr || !items->is_array()) return ElementKeywords();
  if (schema.Has("prefixItems")) {
    return schema.Unknown("prefixItems", "beside an array of \"items\"");
  }
  return ElementKeywords{"items", "additionalItems"};
}

absl::Status CheckSchema(const SchemaNode& schema) {
  const SchemaJson& value = schema.value();
  if (value.is_boolean()) return absl::OkStatus();
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has ", ShownInSchema(value), " at ", schema.Pointer(),
                     ", which is neither an object nor a boolean"));
  }
  for (const auto& [name, each] : value.items()) {
    if (FindKeyword(name).kind == KeywordKind::kUnknown) {
      return schema.Unknown(name);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton::router
