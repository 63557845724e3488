// One tool call as models write it in JSON, {"name": "f", "arguments": {...}},
// read byte by byte. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "router/tool_calls/json_scanner.h"
#include "router/tool_calls/tool_call_body.h"

namespace baton::router {

// The keys may come in either order; of two that are the same, the first one
// counts. Other keys are passed over. Once the name is there and the arguments
// have turned out to be an object, it is a call for sure, and begun().
class ToolCallObject final : public ToolCallBody {
 public:
  // `rules` must outlive it. If `first_key_counts`, the object must begin with
  // one of the two keys, or with "type": "function": so that other JSON is
  // known early not to be a call.
  ToolCallObject(const ToolCallRules* rules, bool first_key_counts)
      : rules_(rules), first_key_counts_(first_key_counts) {}

  // The first byte is the brace; kLast: the object ends.
  Step Take(char c) override;

  bool begun() const override {
    return !name_.empty() && arguments_state_ != Arguments::kNone;
  }
  const std::string& name() const override { return name_; }
  bool has_all_arguments() const override {
    return arguments_state_ == Arguments::kAll;
  }
  bool closed() const override { return false; }
  // As the model wrote it, but for control characters in strings, which get the
  // escapes that JSON wants.
  std::string TakeArguments() override;

 private:
  enum class State : uint8_t {
    kBrace,
    kFirstKey,  // or the end
    kKey,
    kInKey,
    kColon,
    kValue,
    kInValue,
    kAfterValue,  // a comma, or the end
  };
  enum class Member : uint8_t { kName, kArguments, kType, kOther };
  enum class Arguments : uint8_t { kNone, kSome, kAll };

  Step Go(State state);
  Step TakeKey(char c);
  Member MemberOfKey() const;
  Step TakeValue(char c);
  Step BeginValue(char c);
  Step EndValue();
  Step End() const;

  const ToolCallRules* rules_;
  const bool first_key_counts_;
  State state_ = State::kBrace;
  JsonScanner scanner_;  // of the key or value
  std::string written_;  // the key, or the value of a name or type
  Member member_ = Member::kOther;
  bool first_ = true;
  std::string name_;
  Arguments arguments_state_ = Arguments::kNone;
  std::string arguments_;
};

}  // namespace baton::router
