// One tool call as models write it in tags, read byte by byte. One thread at a
// time. GLM 4.5:
//   <tool_call>f
//   <arg_key>city</arg_key>
//   <arg_value>Paris</arg_value>
//   </tool_call>
// Qwen3-Coder:
//   <tool_call>
//   <function=f>
//   <parameter=city>
//   Paris
//   </parameter>
//   </function>
//   </tool_call>
//
// Its arguments become a JSON object. The value of a parameter that is a text
// (text_parameters.h) is what is between the tags, passed on as it comes; all
// others are the JSON that this is, or, if it is none, a string. Python's True,
// False and None are what they mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "router/tool_calls/tool_call_body.h"
#include "router/tool_calls/tool_call_format.h"

namespace baton::router {

// How a call's parts are marked. White space between them is none.
struct TaggedCallSyntax {
  absl::string_view name_opens;  // before the name; may be empty
  // Behind the name; empty: white space or the next tag is.
  absl::string_view name_closes;
  absl::string_view key_opens;
  absl::string_view key_closes;
  absl::string_view value_opens;  // may be empty
  absl::string_view value_closes;
  // Line breaks behind the tag before a value and before the one behind it are
  // no part of it, one each.
  bool value_has_lines = false;
  absl::string_view call_closes;  // beside </tool_call>; may be empty
};

// Null: calls are JSON objects.
const TaggedCallSyntax* SyntaxOf(ToolCallFormat format);

class TaggedToolCall final : public ToolCallBody {
 public:
  // A value that is no string is held back until it is over; one that is
  // longer, a string.
  static constexpr size_t kMaxHeldValue = 64 * 1024;

  // Both must outlive it. Bytes begin behind <tool_call>.
  TaggedToolCall(const ToolCallRules* rules, const TaggedCallSyntax* syntax)
      : rules_(*rules), syntax_(*syntax) {}

  // When a call that has begun turns out to be broken, TakeArguments has what
  // there was of it since the last argument, too, as it was written.
  Step Take(char c) override;
  bool begun() const override { return begun_; }
  const std::string& name() const override { return name_; }
  bool has_all_arguments() const override { return state_ == State::kOver; }
  bool closed() const override { return closed_; }
  std::string TakeArguments() override;

 private:
  enum class State : uint8_t {
    kNameTag,
    kName,
    kBetween,  // arguments
    kKey,
    kValueTag,
    kValueLine,  // a line break that is none
    kValue,
    kOver,
  };

  // Each takes a byte; kAgain: has only changed the state, which is to take it.
  enum class Taken : uint8_t { kByte, kAgain, kLast, kBad };
  Taken TakeByte(char c);
  Taken TakeNameTag(char c);
  Taken TakeName(char c);
  Taken TakeBetween(char c);
  Taken TakeKey(char c);
  Taken TakeValueTag(char c);
  Taken TakeValue(char c);
  void BeginValue();
  void EndValue();
  void AddValueText(absl::string_view text);
  // The value so far is a string, and what comes, too.
  void BeginString();

  const ToolCallRules& rules_;
  const TaggedCallSyntax& syntax_;
  State state_ = State::kNameTag;
  std::string tag_;    // what there is of one, or of a line break before it
  std::string key_;    // and what may be of the tag behind it
  std::string value_;  // held back
  ValueKind kind_ = ValueKind::kJson;
  bool text_ = false;   // the value is a string
  std::string unread_;  // since the last argument
  std::string name_;
  bool begun_ = false;
  bool closed_ = false;
  size_t count_ = 0;  // of arguments that have begun
  std::string arguments_;
};

}  // namespace baton::router
