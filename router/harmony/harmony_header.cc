#include "router/harmony/harmony_header.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "router/harmony/harmony_format.h"

namespace baton::router {
namespace {

constexpr absl::string_view kTo = "to=";
constexpr absl::string_view kSpaces = " \t\n\r";

}  // namespace

bool MayBeHarmonyRole(absl::string_view text) {
  if (text.size() <= kHarmonyRole.size()) {
    return absl::StartsWith(kHarmonyRole, text);
  }
  if (!absl::ConsumePrefix(&text, kHarmonyRole)) return false;
  const absl::string_view word = absl::StripLeadingAsciiWhitespace(text);
  if (word.empty()) return true;
  if (word.size() == text.size()) return false;  // no space before it
  if (word.size() <= kTo.size()) return absl::StartsWith(kTo, word);
  return absl::StartsWith(word, kTo) &&
         absl::StripTrailingAsciiWhitespace(word).find_first_of(kSpaces) ==
             absl::string_view::npos;
}

bool IsHarmonyRole(absl::string_view text) {
  return text.size() >= kHarmonyRole.size();
}

HarmonyHeader ReadHarmonyHeader(absl::string_view role,
                                absl::string_view channel) {
  HarmonyHeader header;
  absl::ConsumePrefix(&role, kHarmonyRole);
  for (const bool of_role : {true, false}) {
    for (absl::string_view word :
         absl::StrSplit(of_role ? role : channel, absl::ByAnyChar(kSpaces),
                        absl::SkipEmpty())) {
      if (absl::ConsumePrefix(&word, kTo)) {
        header.recipient = std::string(word);
      } else if (!of_role && header.channel.empty()) {
        header.channel = std::string(word);
      }
    }
  }
  return header;
}

HarmonyBody BodyOf(const HarmonyHeader& header, std::string* function) {
  absl::string_view recipient = header.recipient;
  if (absl::ConsumePrefix(&recipient, kHarmonyFunctions)) {
    if (function != nullptr) *function = std::string(recipient);
    return HarmonyBody::kFunction;
  }
  if (!recipient.empty() || header.channel == "analysis") {
    return HarmonyBody::kReasoning;
  }
  return HarmonyBody::kContent;
}

}  // namespace baton::router
