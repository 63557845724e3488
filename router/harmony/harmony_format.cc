#include "router/harmony/harmony_format.h"

#include "absl/strings/match.h"

namespace baton::router {

bool WritesHarmony(absl::string_view chat_template) {
  for (const absl::string_view marker :
       {kHarmonyStart, kHarmonyChannel, kHarmonyMessage}) {
    if (!absl::StrContains(chat_template, marker)) return false;
  }
  return true;
}

std::string HarmonyOpening(absl::string_view prompt) {
  const size_t start = prompt.rfind(kHarmonyStart);
  if (start == absl::string_view::npos) return "";
  const absl::string_view begun = prompt.substr(start + kHarmonyStart.size());
  for (const absl::string_view end :
       {kHarmonyEnd, kHarmonyReturn, kHarmonyCall}) {
    if (absl::StrContains(begun, end)) return "";
  }
  const size_t message = begun.find(kHarmonyMessage);
  const absl::string_view header =
      message == absl::string_view::npos
          ? begun
          : begun.substr(0, message + kHarmonyMessage.size());
  return header.size() > kMaxHarmonyHeader ? "" : std::string(header);
}

}  // namespace baton::router
