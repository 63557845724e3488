// The format in which gpt-oss models write their answers (OpenAI 2025, Harmony
// response format): messages, each with a channel that says whom it is for,
// marked by tokens of their own.
//   <|channel|>analysis<|message|>thoughts<|end|>
//   <|start|>assistant<|channel|>final<|message|>answer<|return|>
// A call of a tool, which may have the recipient before the channel instead:
//   <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json
//   <|message|>{"x":1}<|call|>
// (without the line breaks). The prompt ends with <|start|>assistant.
//
// Pure; any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace baton::router {

inline constexpr absl::string_view kHarmonyStart = "<|start|>";
inline constexpr absl::string_view kHarmonyChannel = "<|channel|>";
inline constexpr absl::string_view kHarmonyConstrain = "<|constrain|>";
inline constexpr absl::string_view kHarmonyMessage = "<|message|>";
inline constexpr absl::string_view kHarmonyEnd = "<|end|>";
// These end an answer as well.
inline constexpr absl::string_view kHarmonyReturn = "<|return|>";
inline constexpr absl::string_view kHarmonyCall = "<|call|>";

inline constexpr absl::string_view kHarmonyMarkers[] = {
    kHarmonyStart, kHarmonyChannel, kHarmonyConstrain, kHarmonyMessage,
    kHarmonyEnd,   kHarmonyReturn,  kHarmonyCall};

// Who writes an answer, and what its tools are called by.
inline constexpr absl::string_view kHarmonyRole = "assistant";
inline constexpr absl::string_view kHarmonyFunctions = "functions.";

// Of a message's header: more is none.
inline constexpr size_t kMaxHarmonyHeader = 1024;

// Whether a model with this chat template (Jinja's source text) writes so.
bool WritesHarmony(absl::string_view chat_template);

// What this prompt, which the chat template of such a model made, has begun of
// a message: what stands behind its last <|start|>, up to <|message|> if that
// is there. Empty: the last message is over.
std::string HarmonyOpening(absl::string_view prompt);

}  // namespace baton::router
