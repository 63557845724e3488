#include "router/output_format/reasoning_grammar.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/regular_expression.h"

namespace baton::router {
namespace {

using scheduling::GrammarBuilder;

// Text that has no </think>, and then that, as the automaton that looks for it
// reads text. Behind a < that may begin it, these lead to the next <, and these
// back to where there is none.
std::string Thought() {
  const std::string again = "(?:<|/<|/t<|/th<|/thi<|/thin<|/think<)*";
  const std::string back =
      "(?:[^</]|/[^t<]|/t[^h<]|/th[^i<]|/thi[^n<]|/thin[^k<]|/think[^><])";
  return absl::StrCat("(?:[^<]|<", again, back, ")*<", again, "/think>");
}

}  // namespace

absl::StatusOr<GrammarBuilder::Expression> WriteBehindReasoning(
    ReasoningStart start, GrammarBuilder::Expression answer,
    GrammarBuilder* grammar) {
  BATON_ASSIGN_OR_RETURN(const GrammarBuilder::Expression thought,
                         WriteRegularExpression(Thought(), Match::kWhole,
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
