#include "router/output_format/response_grammars.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/harmony_grammar.h"
#include "router/output_format/json_schema.h"
#include "router/output_format/reasoning_grammar.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/tool_call_grammar.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

using scheduling::Grammar;
using scheduling::GrammarAutomaton;
using scheduling::GrammarBuilder;

constexpr int kMaxChoices = 4096;
constexpr size_t kMaxChoiceBytes = 64 * 1024;  // of one

absl::Status WriteChoice(const v1::ResponseFormat::Choice& choice,
                         GrammarBuilder::Rule rule, GrammarBuilder* grammar) {
  if (choice.texts().empty() || choice.texts_size() > kMaxChoices) {
    return absl::InvalidArgumentError(absl::StrCat("has ", choice.texts_size(),
                                                   " texts, it must have 1 to ",
                                                   kMaxChoices));
  }
  std::vector<GrammarBuilder::Expression> texts;
  for (int i = 0; i < choice.texts_size(); ++i) {
    const std::string& text = choice.texts(i);
    if (text.empty() || text.size() > kMaxChoiceBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a text of ", text.size(), " bytes at index ", i,
                       ", it must have 1 to ", kMaxChoiceBytes));
    }
    texts.push_back(grammar->Literal(text));
  }
  grammar->Define(rule, grammar->Choice(texts));
  return absl::OkStatus();
}

absl::Status Write(const v1::ResponseFormat& format,
                   std::optional<ToolCallFormat> calls,
                   GrammarBuilder::Rule whole, GrammarBuilder* grammar) {
  switch (format.kind_case()) {
    case v1::ResponseFormat::kJsonObject:
      WriteAnyJsonObject(whole, grammar);
      return absl::OkStatus();
    case v1::ResponseFormat::kJsonSchema:
      return WriteJsonSchema(format.json_schema(), whole, grammar);
    case v1::ResponseFormat::kRegex: {
      BATON_ASSIGN_OR_RETURN(
          const GrammarBuilder::Expression expression,
          WriteRegularExpression(format.regex(), Match::kWhole, Writing::kPlain,
                                 grammar));
      grammar->Define(whole, expression);
      return absl::OkStatus();
    }
    case v1::ResponseFormat::kChoice:
      return WriteChoice(format.choice(), whole, grammar);
    case v1::ResponseFormat::kToolCalls:
      if (!calls.has_value()) {
        return absl::InvalidArgumentError(
            "asks for a tool call, and how this model writes them is not "
            "known");
      }
      return WriteToolCalls(format.tool_calls(), *calls, whole, grammar);
    case v1::ResponseFormat::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("is of no kind");
}

// Calls are messages by themselves.
absl::StatusOr<GrammarBuilder::Expression> WriteHarmony(
    const v1::ResponseFormat& format, GrammarBuilder::Expression answer,
    GrammarBuilder* grammar) {
  if (!format.has_tool_calls()) {
    answer = WriteFinalMessage(
        answer, format.has_json_object() || format.has_json_schema(), grammar);
  }
  return WriteBehindThoughts(answer, grammar);
}

absl::StatusOr<Grammar> Build(GrammarBuilder* builder) {
  Grammar grammar;
  BATON_RETURN_IF_ERROR(builder->Build(&grammar));
  // What workers would say of it is said here.
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<GrammarAutomaton> automaton,
                         GrammarAutomaton::Make(grammar));
  if (automaton->MustEnd(automaton->start())) {
    return absl::InvalidArgumentError("allows the empty answer alone");
  }
  return grammar;
}

absl::StatusOr<Grammar> Make(const v1::ResponseFormat& format,
                             std::optional<ToolCallFormat> calls,
                             ReasoningStart reasoning) {
  // Refused for the same reasons, whatever comes before it.
  GrammarBuilder alone;
  BATON_RETURN_IF_ERROR(Write(format, calls, alone.NewRule(), &alone));
  BATON_ASSIGN_OR_RETURN(Grammar grammar, Build(&alone));
  if (reasoning == ReasoningStart::kNone || !format.reasoning()) {
    return grammar;
  }
  GrammarBuilder builder;
  const GrammarBuilder::Rule whole = builder.NewRule();
  const GrammarBuilder::Rule answer = builder.NewRule();
  BATON_RETURN_IF_ERROR(Write(format, calls, answer, &builder));
  BATON_ASSIGN_OR_RETURN(
      const GrammarBuilder::Expression behind,
      reasoning == ReasoningStart::kHarmony
          ? WriteHarmony(format, builder.Call(answer), &builder)
          : WriteBehindReasoning(reasoning, builder.Call(answer), &builder));
  builder.Define(whole, behind);
  return Build(&builder);
}

}  // namespace

const char* FormatName(const v1::ResponseFormat& format) {
  switch (format.kind_case()) {
    case v1::ResponseFormat::kJsonObject:
      return "json_object";
    case v1::ResponseFormat::kJsonSchema:
      return "json_schema";
    case v1::ResponseFormat::kRegex:
      return "regex";
    case v1::ResponseFormat::kChoice:
      return "choice";
    case v1::ResponseFormat::kToolCalls:
      return "tool_choice";
    case v1::ResponseFormat::KIND_NOT_SET:
      break;
  }
  return "response_format";
}

absl::StatusOr<std::shared_ptr<const Grammar>> MakeGrammar(
    const v1::ResponseFormat& format, std::optional<ToolCallFormat> calls,
    ReasoningStart reasoning) {
  absl::StatusOr<Grammar> grammar = Make(format, calls, reasoning);
  if (grammar.ok()) return std::make_shared<const Grammar>(*std::move(grammar));
  return absl::InvalidArgumentError(grammar.status().message());
}

absl::StatusOr<std::shared_ptr<const Grammar>> ResponseGrammars::Get(
    const v1::ResponseFormat& format, std::optional<ToolCallFormat> calls,
    ReasoningStart reasoning) {
  std::string name = format.SerializeAsString();
  if (name.size() > kMaxKeptBytes) {
    return MakeGrammar(format, calls, reasoning);
  }
  {
    absl::MutexLock lock(&mu_);
    const auto found =
        std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
          return kept.format == name && kept.reasoning == reasoning;
        });
    if (found != kept_.end()) {
      std::rotate(kept_.begin(), found, found + 1);
      return kept_.front().grammar;
    }
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<const Grammar> grammar,
                         MakeGrammar(format, calls, reasoning));
  absl::MutexLock lock(&mu_);
  if (kept_.size() >= kMaxKept) kept_.pop_back();
  kept_.push_front(
      {.format = std::move(name), .reasoning = reasoning, .grammar = grammar});
  return grammar;
}

}  // namespace baton::router
