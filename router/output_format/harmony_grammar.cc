#include "router/output_format/harmony_grammar.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/harmony/harmony_format.h"
#include "router/output_format/regular_expression.h"

namespace baton::router {
namespace {

using scheduling::GrammarBuilder;
using Expression = GrammarBuilder::Expression;

Expression Marker(absl::string_view marker, GrammarBuilder* grammar) {
  return grammar->Literal(MarkerBytes(marker));
}

// <|constrain|>json, where models like to write it, or only the word.
Expression MaySayJson(GrammarBuilder* grammar) {
  return grammar->Optional(grammar->Choice(
      {grammar->Sequence({grammar->Optional(grammar->Literal(" ")),
                          Marker(kHarmonyConstrain, grammar),
                          grammar->Literal("json")}),
       grammar->Literal(" json")}));
}

}  // namespace

std::string MarkerBytes(absl::string_view marker) {
  return absl::StrCat(absl::string_view(&kMarkerByte, 1), marker);
}

absl::StatusOr<Expression> WriteBehindThoughts(Expression message,
                                               GrammarBuilder* grammar) {
  BATON_ASSIGN_OR_RETURN(const Expression text,
                         WriteRegularExpression("[\\s\\S]*", Match::kWhole,
                                                Writing::kPlain, grammar));
  const Expression thought = grammar->Sequence(
      {Marker(kHarmonyChannel, grammar), grammar->Literal("analysis"),
       Marker(kHarmonyMessage, grammar), text, Marker(kHarmonyEnd, grammar),
       Marker(kHarmonyStart, grammar), grammar->Literal(kHarmonyRole)});
  return grammar->Sequence(
      {grammar->Repeat(thought, 0, scheduling::kAnyNumber), message});
}

Expression WriteFinalMessage(Expression answer, bool json,
                             GrammarBuilder* grammar) {
  std::vector<Expression> parts = {Marker(kHarmonyChannel, grammar),
                                   grammar->Literal("final")};
  if (json) parts.push_back(MaySayJson(grammar));
  parts.push_back(Marker(kHarmonyMessage, grammar));
  parts.push_back(answer);
  return grammar->Sequence(parts);
}

Expression WriteCallMessage(absl::string_view name, Expression arguments,
                            GrammarBuilder* grammar) {
  const Expression to =
      grammar->Literal(absl::StrCat(" to=", kHarmonyFunctions, name));
  const Expression channel = grammar->Sequence(
      {Marker(kHarmonyChannel, grammar), grammar->Literal("commentary")});
  return grammar->Sequence({grammar->Choice({grammar->Sequence({channel, to}),
                                             grammar->Sequence({to, channel})}),
                            MaySayJson(grammar),
                            Marker(kHarmonyMessage, grammar), arguments});
}

}  // namespace baton::router
