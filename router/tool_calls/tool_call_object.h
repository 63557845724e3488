// One tool call as models write it in JSON, {"name": "f", "arguments": {...}},
// read byte by byte. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "router/tool_calls/json_scanner.h"

namespace baton::router {

// What an object has to be, to be a call.
struct ToolCallRules {
  static constexpr size_t kMaxNameBytes = 256;

  // Whether the arguments may be called "parameters", too.
  bool parameters = false;
  // Names that there are; any will do if it is empty.
  absl::flat_hash_set<std::string> names;
};

// The keys may come in either order; of two that are the same, the first one
// counts. Other keys are passed over. Once the name is there and the arguments
// have turned out to be an object, it is a call for sure, and begun().
class ToolCallObject final {
 public:
  enum class Step {
    kMore,
    kLast,  // the object, which is a call, ends with this byte
    kBad,   // with this byte it is no JSON, or no call
  };

  // `rules` must outlive it. If `first_key_counts`, the object must begin with
  // one of the two keys, or with "type": "function": so that other JSON is
  // known early not to be a call.
  ToolCallObject(const ToolCallRules* rules, bool first_key_counts)
      : rules_(rules), first_key_counts_(first_key_counts) {}

  // The next byte, beginning with the brace. REQUIRES: kMore was what came of
  // the one before.
  Step Take(char c);

  bool begun() const {
    return !name_.empty() && arguments_state_ != Arguments::kNone;
  }
  const std::string& name() const { return name_; }
  // Whether the arguments are there to their end, whatever comes behind.
  bool has_all_arguments() const { return arguments_state_ == Arguments::kAll; }
  // What there is of the arguments' JSON and was not taken yet: as the model
  // wrote it, but for control characters in strings, which get the escapes that
  // JSON wants.
  std::string TakeArguments();

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
