#include "router/output_format/tool_call_grammar.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/json_shape.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "router/output_format/harmony_grammar.h"
#include "router/output_format/json_schema.h"
#include "router/output_format/tagged_call_grammar.h"
#include "router/tool_calls/headed_tool_call.h"

namespace baton::router {
namespace {

using scheduling::GrammarBuilder;
using Json = nlohmann::ordered_json;
using Tool = v1::ResponseFormat::ToolCalls::Tool;

// Of one answer.
constexpr uint32_t kMaxCalls = 32;
constexpr size_t kMaxNameBytes = 256;
constexpr int kMaxTools = 1024;
constexpr JsonBounds kSchemaBounds = {
    .max_depth = kMaxSchemaDepth, .max_values = 1 << 18, .max_members = 1024};

// The schema, made to say that arguments are an object, as all ways of writing
// calls have it.
absl::StatusOr<std::string> ObjectSchema(const std::string& schema) {
  if (schema.size() > kMaxSchemaBytes) return schema;  // refused later
  // Before it is parsed: what is nested deeply takes the stack.
  BATON_RETURN_IF_ERROR(CheckJsonBounds(schema, kSchemaBounds));
  Json parameters = Json::parse(schema, nullptr, /*allow_exceptions=*/false);
  if (parameters.is_discarded()) {
    return absl::InvalidArgumentError("is not valid JSON");
  }
  if (parameters == true) return std::string(R"({"type":"object"})");
  const auto type = parameters.find("type");
  if (!parameters.is_object() ||
      (type != parameters.end() && *type != "object" &&
       !(type->is_array() &&
         std::find(type->begin(), type->end(), "object") != type->end()))) {
    return absl::InvalidArgumentError("allows no object");
  }
  parameters["type"] = "object";
  parameters.erase("nullable");
  return parameters.dump();
}

// What is wrong with them.
absl::Status OfParameters(const Tool& tool, const absl::Status& error) {
  return absl::Status(
      error.code(),
      absl::StrCat("has the tool \"", tool.name(),
                   "\", whose parameters' schema ", error.message()));
}

absl::Status WriteArguments(const Tool& tool, GrammarBuilder::Rule rule,
                            GrammarBuilder* grammar) {
  if (tool.parameters().empty()) {
    WriteAnyJsonObject(rule, grammar);
    return absl::OkStatus();
  }
  const absl::StatusOr<std::string> schema = ObjectSchema(tool.parameters());
  const absl::Status written =
      schema.ok() ? WriteJsonSchema(*schema, rule, grammar) : schema.status();
  return written.ok() ? written : OfParameters(tool, written);
}

absl::Status UnfitName(const Tool& tool, const char* where) {
  return absl::InvalidArgumentError(absl::StrCat(
      "has a tool \"", tool.name(), "\", a name that is no part of ", where));
}

// As tags, with the markers around it.
absl::StatusOr<GrammarBuilder::Expression> WriteTags(
    const Tool& tool, const TaggedCallSyntax& syntax, GrammarBuilder* grammar) {
  if (!FitsIntoTags(tool.name())) {
    return UnfitName(tool, "tags");
  }
  const absl::StatusOr<std::string> schema =
      ObjectSchema(tool.parameters().empty() ? "true" : tool.parameters());
  const absl::StatusOr<GrammarBuilder::Expression> written =
      schema.ok() ? WriteTaggedCall(tool.name(), *schema, syntax, grammar)
                  : schema.status();
  if (written.ok()) return written;
  return OfParameters(tool, written.status());
}

// A head before the arguments, with the markers around the call.
absl::StatusOr<GrammarBuilder::Expression> WriteHeaded(
    const Tool& tool, const HeadedCallSyntax& syntax, GrammarBuilder* grammar) {
  if (!FitsIntoHead(tool.name())) return UnfitName(tool, "heads");
  const GrammarBuilder::Rule rule = grammar->NewRule();
  BATON_RETURN_IF_ERROR(WriteArguments(tool, rule, grammar));
  std::vector<GrammarBuilder::Expression> parts = {
      grammar->Literal(absl::StrCat(syntax.markers.open, syntax.before_name,
                                    tool.name(), syntax.numbered ? ":" : ""))};
  if (syntax.numbered) {
    parts.push_back(grammar->Repeat(grammar->ByteRange('0', '9'), 1, 4));
  }
  parts.push_back(grammar->Literal(syntax.behind_name));
  parts.push_back(grammar->Call(rule));
  parts.push_back(grammar->Literal(
      absl::StrCat(syntax.behind_arguments, syntax.markers.close)));
  return grammar->Sequence(parts);
}

// {"name": "f", "arguments": {...}}, tags, a head and arguments, or a message.
absl::StatusOr<GrammarBuilder::Expression> WriteCall(const Tool& tool,
                                                     ToolCallFormat format,
                                                     GrammarBuilder* grammar) {
  if (tool.name().empty() || tool.name().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a tool whose name has ", tool.name().size(),
                     " bytes, it must have 1 to ", kMaxNameBytes));
  }
  if (const TaggedCallSyntax* syntax = SyntaxOf(format); syntax != nullptr) {
    return WriteTags(tool, *syntax, grammar);
  }
  if (const HeadedCallSyntax* syntax = HeadedSyntaxOf(format);
      syntax != nullptr) {
    return WriteHeaded(tool, *syntax, grammar);
  }
  const char* const arguments =
      format == ToolCallFormat::kLlamaJson ? "parameters" : "arguments";
  const GrammarBuilder::Rule rule = grammar->NewRule();
  BATON_RETURN_IF_ERROR(WriteArguments(tool, rule, grammar));
  if (format == ToolCallFormat::kHarmony) {
    if (!FitsIntoTags(tool.name())) return UnfitName(tool, "headers");
    return WriteCallMessage(tool.name(), grammar->Call(rule), grammar);
  }
  const std::string name = Json(tool.name())
                               .dump(-1, ' ', /*ensure_ascii=*/false,
                                     Json::error_handler_t::replace);
  return grammar->Sequence(
      {grammar->Literal(
           absl::StrCat("{\"name\": ", name, ", \"", arguments, "\": ")),
       grammar->Call(rule), grammar->Literal("}")});
}

}  // namespace

absl::Status WriteToolCalls(const v1::ResponseFormat::ToolCalls& calls,
                            ToolCallFormat format, GrammarBuilder::Rule rule,
                            GrammarBuilder* grammar) {
  if (calls.tools().empty() || calls.tools_size() > kMaxTools) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", calls.tools_size(), " tools, it must have 1 to ", kMaxTools));
  }
  std::vector<GrammarBuilder::Expression> one_of;
  for (const Tool& tool : calls.tools()) {
    BATON_ASSIGN_OR_RETURN(const GrammarBuilder::Expression call,
                           WriteCall(tool, format, grammar));
    one_of.push_back(call);
    if (grammar->full()) return absl::OkStatus();  // which says so
  }
  const GrammarBuilder::Expression call = grammar->Choice(one_of);
  // `begin` CALL, and more of them behind `between`, `end`.
  const auto list = [&](absl::string_view begin, absl::string_view between,
                        absl::string_view end) {
    const GrammarBuilder::Rule rule_of_call = grammar->NewRule();
    grammar->Define(rule_of_call, call);
    std::vector<GrammarBuilder::Expression> parts = {
        grammar->Literal(begin), grammar->Call(rule_of_call)};
    if (calls.several()) {
      parts.push_back(
          grammar->Repeat(grammar->Sequence({grammar->Literal(between),
                                             grammar->Call(rule_of_call)}),
                          0, kMaxCalls - 1));
    }
    parts.push_back(grammar->Literal(end));
    return grammar->Sequence(parts);
  };
  switch (format) {
    case ToolCallFormat::kHermes:
      grammar->Define(rule,
                      list("<tool_call>\n", "\n</tool_call>\n<tool_call>\n",
                           "\n</tool_call>"));
      return absl::OkStatus();
    case ToolCallFormat::kLlamaJson:
    case ToolCallFormat::kHarmony:
      // These models were trained on one call.
      grammar->Define(rule, call);
      return absl::OkStatus();
    case ToolCallFormat::kMistral:
      // Its marker is a token without text.
      grammar->Define(rule, list("[", ", ", "]"));
      return absl::OkStatus();
    case ToolCallFormat::kGlm:
    case ToolCallFormat::kQwenCoder:
      grammar->Define(rule, list("", "\n", ""));
      return absl::OkStatus();
    case ToolCallFormat::kDeepseek:
    case ToolCallFormat::kDeepseekV31:
    case ToolCallFormat::kKimi: {
      const HeadedCallSyntax& syntax = *HeadedSyntaxOf(format);
      grammar->Define(rule, list(syntax.markers.section_open, syntax.between,
                                 syntax.markers.section_close));
      return absl::OkStatus();
    }
  }
  LOG(FATAL) << "not a ToolCallFormat";
}

}  // namespace baton::router
