// How a model writes its tool calls. Any thread.
#pragma once

#include <optional>

#include "absl/strings/string_view.h"

namespace baton::router {

enum class ToolCallFormat {
  // Any number of these, with text before, between and after them (Qwen 2.5 and
  // 3, Hermes):
  //   <tool_call>
  //   {"name": "f", "arguments": {"x": 1}}
  //   </tool_call>
  kHermes,
  // The whole answer is one, or several with ; between them (Llama 3.1 to 3.3):
  //   {"name": "f", "parameters": {"x": 1}}
  // "arguments" will do as well. The special token <|python_tag|> that may
  // stand
  // before it is not part of the text.
  kLlamaJson,
  // An array of all of them (Mistral, before its version 11 of this):
  //   [TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]
  // As the marker is a special token, which may not be part of the text, an
  // answer that begins with the array counts, too.
  kMistral,
  // As kHermes, but the calls are tags (tagged_tool_call.h): of GLM 4.5
  // and 4.6,
  // <tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>,
  kGlm,
  // and of Qwen3-Coder, <tool_call><function=f><parameter=x>1</parameter>
  // </function></tool_call>.
  kQwenCoder,
  // As kHermes, but between other markers, with a head and then the arguments'
  // JSON (headed_tool_call.h): of DeepSeek V3 and R1, of V3.1, and of Kimi K2.
  kDeepseek,
  kDeepseekV31,
  kKimi,
  // As messages (router/harmony), which no ToolCallStream reads. What a
  // template says is not enough to find it.
  kHarmony,
};

// Whether any number of calls may come, each between two markers, as
// <tool_call> and </tool_call> are.
constexpr bool MarksEachCall(ToolCallFormat format) {
  return format != ToolCallFormat::kLlamaJson &&
         format != ToolCallFormat::kMistral &&
         format != ToolCallFormat::kHarmony;
}

// What a model with this chat template (Jinja's source text) writes; nothing if
// it has no tool calls, or writes them in another way.
std::optional<ToolCallFormat> FindToolCallFormat(
    absl::string_view chat_template);

}  // namespace baton::router
