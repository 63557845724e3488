// What stands before a message of Harmony (harmony_format.h). Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

struct HarmonyHeader {
  std::string channel;    // empty: none
  std::string recipient;  // empty: whoever asked
};

// Whether this may stand, or begin to, between <|start|> and the next marker:
// the role, and perhaps "to=" and a recipient.
bool MayBeHarmonyRole(absl::string_view text);
// The role is there whole. REQUIRES: MayBeHarmonyRole.
bool IsHarmonyRole(absl::string_view text);

// `role` and `channel` as they stand before <|channel|> and behind it, up to
// the next marker.
HarmonyHeader ReadHarmonyHeader(absl::string_view role,
                                absl::string_view channel);

// What the body of such a message is.
enum class HarmonyBody : uint8_t {
  kReasoning,
  kContent,   // of any channel but analysis, and without one
  kFunction,  // arguments of a call
};

// Recipients that are no functions (of tools that a model may think it has) are
// thoughts. `function`, if it is not null: the name that is called.
HarmonyBody BodyOf(const HarmonyHeader& header, std::string* function);

}  // namespace baton::router
