#include "router/tool_calls/tool_call_object.h"

#include <utility>

#include "common/json.h"
#include "common/log.h"

namespace baton::router {
namespace {

// No key that counts is longer, with its quotes.
constexpr size_t kMaxWrittenKey = 16;
// Each byte of a name may be an escape, \u0041.
constexpr size_t kMaxWrittenName = 6 * ToolCallRules::kMaxNameBytes + 2;

// What the JSON string `written` says; empty if it is none, or no Unicode.
std::string ReadString(const std::string& written) {
  const nlohmann::json value =
      nlohmann::json::parse(written, nullptr, /*allow_exceptions=*/false);
  return value.is_string() ? value.get<std::string>() : "";
}

}  // namespace

ToolCallObject::Step ToolCallObject::Go(State state) {
  state_ = state;
  return Step::kMore;
}

ToolCallObject::Step ToolCallObject::Take(char c) {
  if (state_ == State::kInKey) return TakeKey(c);
  if (state_ == State::kInValue) return TakeValue(c);
  if (state_ != State::kBrace && IsJsonSpace(c)) return Step::kMore;
  switch (state_) {
    case State::kBrace:
      return c == '{' ? Go(State::kFirstKey) : Step::kBad;
    case State::kFirstKey:
    case State::kKey:
      if (c == '}' && state_ == State::kFirstKey) return End();
      if (c != '"') return Step::kBad;
      scanner_ = JsonScanner();
      written_.clear();
      return TakeKey(c);
    case State::kColon:
      return c == ':' ? Go(State::kValue) : Step::kBad;
    case State::kValue:
      return BeginValue(c);
    case State::kAfterValue:
      if (c == ',') return Go(State::kKey);
      return c == '}' ? End() : Step::kBad;
    case State::kInKey:
    case State::kInValue:
      break;
  }
  LOG(FATAL) << "no such state";
}

ToolCallObject::Step ToolCallObject::TakeKey(char c) {
  const JsonScanner::Step step = scanner_.Take(c);
  if (step == JsonScanner::Step::kBad) return Step::kBad;
  if (written_.size() <= kMaxWrittenKey) written_.push_back(c);
  if (step == JsonScanner::Step::kMore) return Go(State::kInKey);
  member_ = MemberOfKey();
  if (std::exchange(first_, false) && first_key_counts_ &&
      member_ == Member::kOther) {
    return Step::kBad;
  }
  return Go(State::kColon);
}

ToolCallObject::Member ToolCallObject::MemberOfKey() const {
  if (written_ == "\"name\"" && name_.empty()) return Member::kName;
  if ((written_ == "\"arguments\"" ||
       (rules_->parameters && written_ == "\"parameters\"")) &&
      !has_all_arguments()) {
    return Member::kArguments;
  }
  if (written_ == "\"type\"" && first_ && first_key_counts_) {
    return Member::kType;
  }
  return Member::kOther;
}

ToolCallObject::Step ToolCallObject::BeginValue(char c) {
  if (member_ == Member::kName && c != '"') return Step::kBad;
  if (member_ == Member::kArguments) {
    if (c != '{') return Step::kBad;
    arguments_state_ = Arguments::kSome;
  }
  scanner_ = JsonScanner();
  written_.clear();
  state_ = State::kInValue;
  return TakeValue(c);
}

ToolCallObject::Step ToolCallObject::TakeValue(char c) {
  const bool in_string = scanner_.in_string();
  const JsonScanner::Step step = scanner_.Take(c);
  if (step == JsonScanner::Step::kBad) return Step::kBad;
  if (member_ == Member::kName || member_ == Member::kType) {
    if (written_.size() == kMaxWrittenName) return Step::kBad;
    written_.push_back(c);
  }
  if (member_ == Member::kArguments) AppendJsonByte(c, in_string, &arguments_);
  if (step == JsonScanner::Step::kMore) return Step::kMore;
  const Step ended = EndValue();
  if (ended == Step::kBad || step == JsonScanner::Step::kLast) return ended;
  return Take(c);
}

ToolCallObject::Step ToolCallObject::EndValue() {
  if (member_ == Member::kArguments) arguments_state_ = Arguments::kAll;
  if (member_ == Member::kType && written_ != "\"function\"") return Step::kBad;
  if (member_ == Member::kName) {
    std::string name = ReadString(written_);
    if (name.empty() || name.size() > ToolCallRules::kMaxNameBytes ||
        (!rules_->names.empty() && !rules_->names.contains(name))) {
      return Step::kBad;
    }
    name_ = std::move(name);
  }
  return Go(State::kAfterValue);
}

ToolCallObject::Step ToolCallObject::End() const {
  return begun() ? Step::kLast : Step::kBad;
}

std::string ToolCallObject::TakeArguments() {
  return std::exchange(arguments_, "");
}

}  // namespace baton::router
