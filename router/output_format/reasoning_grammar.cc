#include "router/output_format/reasoning_grammar.h"

#include "common/status_macros.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/text_through.h"

namespace baton::router {

using scheduling::GrammarBuilder;

absl::StatusOr<GrammarBuilder::Expression> WriteBehindReasoning(
    ReasoningStart start, GrammarBuilder::Expression answer,
    GrammarBuilder* grammar) {
  BATON_ASSIGN_OR_RETURN(
      const GrammarBuilder::Expression thought,
      WriteRegularExpression(TextThrough(kThinkEnds), Match::kWhole,
                             Writing::kPlain, grammar));
  const GrammarBuilder::Expression breaks =
      grammar->Repeat(grammar->Literal("\n"), 0, 2);
  if (start == ReasoningStart::kOpen) {
    return grammar->Sequence({thought, breaks, answer});
  }
  return grammar->Sequence(
      {grammar->Optional(grammar->Sequence(
           {grammar->Literal(kThinkBegins), thought, breaks})),
       answer});
}

}  // namespace baton::router
