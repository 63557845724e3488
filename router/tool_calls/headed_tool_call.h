// One tool call as models write it with a head, its name, before the JSON of
// its arguments, read byte by byte. One thread at a time. DeepSeek V3 and R1:
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f
//   ```json
//   {"x": 1}
//   ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>
// DeepSeek V3.1:
//   <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"x": 1}
//   <｜tool▁call▁end｜><｜tool▁calls▁end｜>
// without the line break; Kimi K2, in the same way:
//   <|tool_calls_section_begin|><|tool_call_begin|>functions.f:0
//   <|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>
//   <|tool_calls_section_end|>
//
// Calls of both DeepSeeks are read whichever of the two it is, and the marks
// ```json may be missing: models mix them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "router/tool_calls/json_scanner.h"
#include "router/tool_calls/tool_call_body.h"
#include "router/tool_calls/tool_call_format.h"

namespace baton::router {

struct HeadedCallSyntax {
  CallMarkers markers;
  // Behind the first part of the head.
  absl::string_view separator;
  // The name may come behind it, on a line of its own.
  bool has_second_part = false;
  // The name is functions.f:0, with a number of any kind.
  bool numbered = false;

  // How it is written where a call is asked for (tool_call_grammar.h): behind
  // the marker, the name and the number, if any; then the arguments; and what
  // is between two calls.
  absl::string_view before_name;
  absl::string_view behind_name;
  absl::string_view behind_arguments;
  absl::string_view between;
};

// Null: calls have no head.
const HeadedCallSyntax* HeadedSyntaxOf(ToolCallFormat format);

// Whether a call with this name is read as one of this name.
bool FitsIntoHead(absl::string_view name);

class HeadedToolCall final : public ToolCallBody {
 public:
  // Both must outlive it. Bytes begin behind the call's marker.
  HeadedToolCall(const ToolCallRules* rules, const HeadedCallSyntax* syntax)
      : rules_(*rules), syntax_(*syntax) {}

  Step Take(char c) override;
  bool begun() const override { return state_ >= State::kArguments; }
  const std::string& name() const override { return name_; }
  bool has_all_arguments() const override { return state_ > State::kArguments; }
  bool closed() const override { return false; }
  // As the model wrote it, but for control characters in strings, which get the
  // escapes that JSON wants.
  std::string TakeArguments() override;

 private:
  enum class State : uint8_t {
    kHead,        // up to the separator
    kBehindHead,  // the second part, or the arguments
    kSecondPart,
    kFence,  // ```json, or none
    kArguments,
    kFenceEnd,
    kOver,
  };

  Step TakeHead(char c);
  Step TakeSecondPart(char c);
  Step TakeFence(char c);
  Step TakeArgument(char c);
  // Whether it is a tool's.
  bool SetName(absl::string_view name);

  const ToolCallRules& rules_;
  const HeadedCallSyntax& syntax_;
  State state_ = State::kHead;
  std::string head_;
  std::string second_part_;
  std::string fence_;
  std::string name_;
  JsonScanner scanner_;
  std::string arguments_;
};

}  // namespace baton::router
