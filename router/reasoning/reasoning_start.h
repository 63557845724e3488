// Where in its output a model thinks: between <think> and </think>, before its
// answer, as DeepSeek R1 and what was made of it, QwQ, Qwen 3 and others do.
// Pure; any thread.
#pragma once

#include "absl/strings/string_view.h"

namespace baton::router {

inline constexpr absl::string_view kThinkBegins = "<think>";
inline constexpr absl::string_view kThinkEnds = "</think>";

enum class ReasoningStart {
  kNone,      // it does not think, or is not to
  kPossible,  // it does if its output begins with <think>
  kOpen,      // it does: the prompt ends with <think>
  // It writes messages, some of which it thinks (router/harmony), and the
  // prompt ends where one begins. Not between <think> and </think>.
  kHarmony,
};

// Whether a model with this chat template (Jinja's source text) thinks between
// these markers.
bool WritesReasoning(absl::string_view chat_template);

// Of the output behind this prompt, which the chat template of such a model
// made. One that ends with </think> has the thinking behind it
// ("enable_thinking": false).
ReasoningStart FindReasoningStart(absl::string_view prompt);

// Of an output that goes on with what the assistant said, where such a prompt
// ends: it thinks if that is what it was about.
ReasoningStart FindReasoningGoingOn(absl::string_view prompt);

}  // namespace baton::router
