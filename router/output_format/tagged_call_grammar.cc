#include "router/output_format/tagged_call_grammar.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/output_format/json_schema.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/schema_keywords.h"
#include "router/output_format/text_through.h"
#include "router/tool_calls/text_parameters.h"

namespace baton::router {
namespace {

using scheduling::GrammarBuilder;
using Expression = GrammarBuilder::Expression;
using Json = nlohmann::ordered_json;

// What stands around a call's parts, line breaks included.
struct CallTags {
  explicit CallTags(const TaggedCallSyntax& s)
      : before_name(absl::StrCat(kOpenMarker, s.name_opens.empty() ? "" : "\n",
                                 s.name_opens)),
        behind_name(absl::StrCat(s.name_closes, "\n")),
        behind_key(absl::StrCat(s.key_closes, "\n", s.value_opens)),
        before_close(s.value_has_lines ? "\n" : ""),
        end(absl::StrCat(s.call_closes, s.call_closes.empty() ? "" : "\n",
                         kCloseMarker)) {}

  const std::string before_name;
  const std::string behind_name;
  const std::string behind_key;
  const std::string before_close;  // of a value's tag
  const std::string end;
};

absl::Status CheckKeywords(const Json& schema, absl::string_view where,
                           std::initializer_list<absl::string_view> known) {
  for (const auto& [key, value] : schema.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end() ||
        FindKeyword(key).kind == KeywordKind::kAnnotation) {
      continue;
    }
    return absl::UnimplementedError(
        absl::StrCat("has \"", key, "\" at ", where,
                     ", which Baton does not know of calls that are tags"));
  }
  return absl::OkStatus();
}

// The text of a value and the tag behind it.
absl::StatusOr<Expression> WriteText(const Json& schema,
                                     absl::string_view where,
                                     const TaggedCallSyntax& syntax,
                                     GrammarBuilder* grammar) {
  const CallTags tags(syntax);
  std::vector<Expression> texts;
  for (const char* const name : {"anyOf", "oneOf"}) {
    if (!schema.contains(name)) continue;
    BATON_RETURN_IF_ERROR(CheckKeywords(schema, where, {name}));
    for (const Json& part : schema[name]) {
      BATON_ASSIGN_OR_RETURN(
          const Expression text,
          WriteText(part, absl::StrCat(where, "/", name), syntax, grammar));
      texts.push_back(text);
    }
    return grammar->Choice(texts);
  }
  BATON_RETURN_IF_ERROR(
      CheckKeywords(schema, where, {"type", "enum", "const"}));
  const Expression null = grammar->Literal(
      absl::StrCat("null", tags.before_close, syntax.value_closes));
  const auto constant = schema.find("const");
  const auto values = schema.find("enum");
  if (constant == schema.end() && values == schema.end()) {
    if (schema["type"] == "null") return null;
    // Which has null in it, where that may come.
    return WriteRegularExpression(TextThrough(syntax.value_closes),
                                  Match::kWhole, Writing::kPlain, grammar);
  }
  for (const Json& value :
       constant != schema.end() ? Json::array({*constant}) : *values) {
    if (value.is_null() && KindOfValue(schema) == ValueKind::kTextOrNull) {
      texts.push_back(null);
    }
    if (!value.is_string()) continue;  // its type forbids it
    const std::string& text = value.get_ref<const std::string&>();
    if (absl::StrContains(text, syntax.value_closes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "has a value at ", where, " with ", syntax.value_closes, " in it"));
    }
    texts.push_back(grammar->Literal(
        absl::StrCat(text, tags.before_close, syntax.value_closes)));
  }
  return grammar->Choice(texts);
}

absl::StatusOr<Expression> WriteJson(Json schema, const Json& root,
                                     const TaggedCallSyntax& syntax,
                                     GrammarBuilder* grammar) {
  // What it may refer to.
  for (const char* const name : {"$defs", "definitions"}) {
    if (schema.is_object() && root.contains(name)) schema[name] = root[name];
  }
  const GrammarBuilder::Rule rule = grammar->NewRule();
  BATON_RETURN_IF_ERROR(WriteJsonSchema(schema.dump(), rule, grammar));
  return grammar->Sequence(
      {grammar->Call(rule),
       grammar->Literal(
           absl::StrCat(CallTags(syntax).before_close, syntax.value_closes))});
}

}  // namespace

bool FitsIntoTags(absl::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return c == '<' || c == '>' ||
           absl::ascii_isspace(static_cast<unsigned char>(c));
  });
}

absl::StatusOr<Expression> WriteTaggedCall(const std::string& name,
                                           const std::string& schema,
                                           const TaggedCallSyntax& syntax,
                                           GrammarBuilder* grammar) {
  CHECK(FitsIntoTags(name));
  // What is no schema is no schema here either.
  GrammarBuilder other;
  BATON_RETURN_IF_ERROR(WriteJsonSchema(schema, other.NewRule(), &other));
  const Json root = Json::parse(schema);
  BATON_RETURN_IF_ERROR(CheckKeywords(
      root, "#", {"type", "properties", "required", "additionalProperties"}));
  const Json properties = root.value("properties", Json::object());
  const Json required = root.value("required", Json::array());
  for (const Json& key : required) {
    if (properties.contains(key.get<std::string>())) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "requires \"", key.get<std::string>(), "\", which has no schema"));
  }
  const CallTags tags(syntax);
  std::vector<Expression> parts = {
      grammar->Literal(absl::StrCat(tags.before_name, name, tags.behind_name))};
  for (const auto& [key, value] : properties.items()) {
    const std::string where = absl::StrCat("#/properties/", key);
    if (!FitsIntoTags(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a name at ", where, " that is no part of tags"));
    }
    const Expression opening =
        grammar->Literal(absl::StrCat(syntax.key_opens, key, tags.behind_key));
    BATON_ASSIGN_OR_RETURN(const Expression closing,
                           KindOfValue(value) != ValueKind::kJson
                               ? WriteText(value, where, syntax, grammar)
                               : WriteJson(value, root, syntax, grammar));
    const Expression argument =
        grammar->Sequence({opening, closing, grammar->Literal("\n")});
    const bool needed =
        std::find(required.begin(), required.end(), key) != required.end();
    parts.push_back(needed ? argument : grammar->Optional(argument));
    if (grammar->full()) break;  // which says so
  }
  parts.push_back(grammar->Literal(tags.end));
  return grammar->Sequence(parts);
}

}  // namespace baton::router
