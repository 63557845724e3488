#include "router/tool_calls/tagged_tool_call.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/json_text.h"
#include "router/tool_calls/json_scanner.h"

namespace baton::router {
namespace {

// Within quotes. Bytes from 0x80 on, which may be parts of characters, stay.
void AppendEscaped(absl::string_view text, std::string* out) {
  for (const char& c : text) {
    if (static_cast<unsigned char>(c) < 0x80) {
      AppendJsonEscaped(absl::string_view(&c, 1), out);
    } else {
      out->push_back(c);
    }
  }
}

bool IsNull(absl::string_view text) { return text == "null" || text == "None"; }
bool MayBeNull(absl::string_view text) {
  return absl::StartsWith("null", text) || absl::StartsWith("None", text);
}

// The JSON that the text is; empty: it is none.
std::string JsonOf(absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  if (text == "True") return "true";
  if (text == "False") return "false";
  if (text == "None") return "null";
  JsonScanner scanner;
  for (size_t i = 0; i < text.size(); ++i) {
    // JSON has them escaped.
    if (scanner.in_string() && static_cast<unsigned char>(text[i]) < 0x20) {
      return "";
    }
    const JsonScanner::Step step = scanner.Take(text[i]);
    const bool last = i + 1 == text.size();
    if (step == JsonScanner::Step::kLast && last) return std::string(text);
    if (step != JsonScanner::Step::kMore) return "";
  }
  // A number ends with what is behind it.
  return !text.empty() && scanner.Take(' ') == JsonScanner::Step::kPast
             ? std::string(text)
             : "";
}

constexpr TaggedCallSyntax kGlmCallSyntax = {.key_opens = "<arg_key>",
                                             .key_closes = "</arg_key>",
                                             .value_opens = "<arg_value>",
                                             .value_closes = "</arg_value>"};
constexpr TaggedCallSyntax kQwenCoderCallSyntax = {
    .name_opens = "<function=",
    .name_closes = ">",
    .key_opens = "<parameter=",
    .key_closes = ">",
    .value_closes = "</parameter>",
    .value_has_lines = true,
    .call_closes = "</function>"};

}  // namespace

const TaggedCallSyntax* SyntaxOf(ToolCallFormat format) {
  if (format == ToolCallFormat::kGlm) return &kGlmCallSyntax;
  if (format == ToolCallFormat::kQwenCoder) return &kQwenCoderCallSyntax;
  return nullptr;
}

ToolCallBody::Step TaggedToolCall::Take(char c) {
  // What is passed on as it comes is read.
  if (state_ != State::kValue || !text_) unread_.push_back(c);
  while (true) {
    switch (TakeByte(c)) {
      case Taken::kAgain:
        continue;
      case Taken::kByte:
        return Step::kMore;
      case Taken::kLast:
        return Step::kLast;
      case Taken::kBad:
        unread_.pop_back();
        arguments_ += std::exchange(unread_, "");
        return Step::kBad;
    }
  }
}

std::string TaggedToolCall::TakeArguments() {
  return std::exchange(arguments_, "");
}

TaggedToolCall::Taken TaggedToolCall::TakeByte(char c) {
  switch (state_) {
    case State::kNameTag:
      return TakeNameTag(c);
    case State::kName:
      return TakeName(c);
    case State::kBetween:
      return TakeBetween(c);
    case State::kKey:
      return TakeKey(c);
    case State::kValueTag:
      return TakeValueTag(c);
    case State::kValueLine:
      state_ = State::kValue;
      return c == '\n' ? Taken::kByte : Taken::kAgain;
    case State::kValue:
      return TakeValue(c);
    case State::kOver:
      return Taken::kBad;
  }
  return Taken::kBad;
}

TaggedToolCall::Taken TaggedToolCall::TakeNameTag(char c) {
  if (tag_.empty() && IsJsonSpace(c)) return Taken::kByte;
  if (tag_.size() == syntax_.name_opens.size()) {
    tag_.clear();
    state_ = State::kName;
    return Taken::kAgain;
  }
  tag_.push_back(c);
  return absl::StartsWith(syntax_.name_opens, tag_) ? Taken::kByte
                                                    : Taken::kBad;
}

TaggedToolCall::Taken TaggedToolCall::TakeName(char c) {
  const bool has_tag = !syntax_.name_closes.empty();
  const bool ends =
      has_tag ? c == syntax_.name_closes[0] : c == '<' || IsJsonSpace(c);
  if (!ends) {
    name_.push_back(c);
    return c != '\n' && name_.size() <= ToolCallRules::kMaxNameBytes
               ? Taken::kByte
               : Taken::kBad;
  }
  if (name_.empty() ||
      !(rules_.names.empty() || rules_.names.contains(name_))) {
    return Taken::kBad;
  }
  state_ = State::kBetween;
  // Else only what follows tells whether it is a call.
  if (!has_tag) return Taken::kAgain;
  begun_ = true;
  arguments_.push_back('{');
  unread_.clear();
  return Taken::kByte;
}

TaggedToolCall::Taken TaggedToolCall::TakeBetween(char c) {
  if (tag_.empty() && IsJsonSpace(c)) return Taken::kByte;
  tag_.push_back(c);
  const bool ends = tag_ == kCloseMarker || tag_ == syntax_.call_closes;
  if (!begun_ && (ends || tag_ == syntax_.key_opens)) {
    begun_ = true;
    arguments_.push_back('{');
    unread_ = tag_;
  }
  if (ends) {
    closed_ = tag_ == kCloseMarker;
    arguments_ += "}";
    unread_.clear();
    state_ = State::kOver;
    return Taken::kLast;
  }
  if (tag_ == syntax_.key_opens) {
    tag_.clear();
    key_.clear();
    state_ = State::kKey;
    return Taken::kByte;
  }
  for (const absl::string_view tag :
       {syntax_.key_opens, syntax_.call_closes, kCloseMarker}) {
    if (absl::StartsWith(tag, tag_)) return Taken::kByte;
  }
  return Taken::kBad;
}

TaggedToolCall::Taken TaggedToolCall::TakeKey(char c) {
  key_.push_back(c);
  if (absl::EndsWith(key_, syntax_.key_closes)) {
    key_.resize(key_.size() - syntax_.key_closes.size());
    key_ = std::string(absl::StripAsciiWhitespace(key_));
    state_ = State::kValueTag;
    if (syntax_.value_opens.empty()) BeginValue();
    return Taken::kByte;
  }
  return key_.size() <= ToolCallRules::kMaxNameBytes + syntax_.key_closes.size()
             ? Taken::kByte
             : Taken::kBad;
}

TaggedToolCall::Taken TaggedToolCall::TakeValueTag(char c) {
  if (tag_.empty() && IsJsonSpace(c)) return Taken::kByte;
  tag_.push_back(c);
  if (tag_ == syntax_.value_opens) {
    BeginValue();
    return Taken::kByte;
  }
  return absl::StartsWith(syntax_.value_opens, tag_) ? Taken::kByte
                                                     : Taken::kBad;
}

void TaggedToolCall::BeginValue() {
  tag_.clear();
  value_.clear();
  state_ = syntax_.value_has_lines ? State::kValueLine : State::kValue;
  kind_ = ValueKind::kJson;
  if (const auto texts = rules_.texts.find(name_);
      texts != rules_.texts.end()) {
    const auto kind = texts->second.find(key_);
    if (kind != texts->second.end()) kind_ = kind->second;
  }
  text_ = false;
  if (kind_ == ValueKind::kText) BeginString();
}

TaggedToolCall::Taken TaggedToolCall::TakeValue(char c) {
  // The tag behind it, with a line break before.
  const std::string more = absl::StrCat(tag_, absl::string_view(&c, 1));
  absl::string_view tag = more;
  if (syntax_.value_has_lines) absl::ConsumePrefix(&tag, "\n");
  if (absl::StartsWith(syntax_.value_closes, tag)) {
    tag_ = more;
    if (tag == syntax_.value_closes) EndValue();
    return Taken::kByte;
  }
  if (!tag_.empty()) {
    AddValueText(std::exchange(tag_, ""));
    return Taken::kAgain;
  }
  AddValueText(absl::string_view(&c, 1));
  return Taken::kByte;
}

void TaggedToolCall::AddValueText(absl::string_view text) {
  if (text_) {
    AppendEscaped(text, &arguments_);
    return;
  }
  value_.append(text.data(), text.size());
  const bool may_be_other = kind_ == ValueKind::kJson
                                ? value_.size() <= kMaxHeldValue
                                : MayBeNull(value_);
  if (!may_be_other) BeginString();
}

void TaggedToolCall::BeginString() {
  absl::StrAppend(&arguments_, count_++ > 0 ? ", \"" : "\"");
  AppendEscaped(key_, &arguments_);
  arguments_ += "\": \"";
  AppendEscaped(std::exchange(value_, ""), &arguments_);
  text_ = true;
  unread_.clear();
}

void TaggedToolCall::EndValue() {
  tag_.clear();
  state_ = State::kBetween;
  std::string json;
  if (!text_ && (kind_ == ValueKind::kJson || IsNull(value_))) {
    json = JsonOf(value_);
  }
  if (json.empty()) {
    if (!text_) BeginString();
    arguments_ += '"';
  } else {
    absl::StrAppend(&arguments_, count_++ > 0 ? ", \"" : "\"");
    AppendEscaped(key_, &arguments_);
    absl::StrAppend(&arguments_, "\": ", json);
  }
  text_ = false;
  unread_.clear();
}

}  // namespace baton::router
