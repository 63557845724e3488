#include "router/tool_calls/tool_call_format.h"

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_replace.h"

namespace baton::router {

std::optional<ToolCallFormat> FindToolCallFormat(
    absl::string_view chat_template) {
  // Within Jinja's strings, quotes may have a backslash.
  const std::string text =
      absl::StrReplaceAll(chat_template, {{"\\\"", "\""}, {"\\'", "'"}});
  const auto has = [&text](absl::string_view part) {
    return absl::StrContains(text, part);
  };
  if (has("<tool_call>")) {
    if (has("<arg_key>")) return ToolCallFormat::kGlm;
    if (has("<function=")) return ToolCallFormat::kQwenCoder;
    if (!has("\"arguments\":")) return std::nullopt;
    return ToolCallFormat::kHermes;
  }
  if (has("<｜tool▁calls▁begin｜>")) {
    return has("```json") ? ToolCallFormat::kDeepseek
                          : ToolCallFormat::kDeepseekV31;
  }
  if (has("<|tool_calls_section_begin|>")) return ToolCallFormat::kKimi;
  if (has("[TOOL_CALLS]")) {
    // Newer ones: [TOOL_CALLS]f[ARGS]{"x": 1}.
    if (has("[ARGS]")) return std::nullopt;
    return ToolCallFormat::kMistral;
  }
  // Only the Llamas have a role of this name. Many other templates describe
  // tools by "parameters", and have no such calls.
  if (has("ipython") && has("{\"name\":") && has("\"parameters\":")) {
    return ToolCallFormat::kLlamaJson;
  }
  return std::nullopt;
}

}  // namespace baton::router
