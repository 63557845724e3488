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

ReasoningStart FindReasoningGoingOn(absl::string_view prompt) {
  const size_t begun = prompt.rfind(kThinkBegins);
  const size_t ended = prompt.rfind(kThinkEnds);
  const bool open = begun != absl::string_view::npos &&
                    (ended == absl::string_view::npos || ended < begun);
  return open ? ReasoningStart::kOpen : ReasoningStart::kNone;
}

}  // namespace baton::router
