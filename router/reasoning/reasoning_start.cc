#include "router/reasoning/reasoning_start.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace baton::router {

bool WritesReasoning(absl::string_view chat_template) {
  return absl::StrContains(chat_template, kThinkBegins) ||
         absl::StrContains(chat_template, kThinkEnds);
}

ReasoningStart FindReasoningStart(absl::string_view prompt) {
  const absl::string_view text = absl::StripTrailingAsciiWhitespace(prompt);
  if (absl::EndsWith(text, kThinkBegins)) return ReasoningStart::kOpen;
  if (absl::EndsWith(text, kThinkEnds)) return ReasoningStart::kNone;
  return ReasoningStart::kPossible;
}

}  // namespace baton::router
