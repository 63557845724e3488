#include "router/tool_calls/headed_tool_call.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/log.h"

namespace baton::router {
namespace {

constexpr absl::string_view kFence = "```";
constexpr absl::string_view kJsonFence = "```json";
constexpr absl::string_view kFunctions = "functions.";

// Both parts, white space and numbers included.
constexpr size_t kMaxHeadBytes = ToolCallRules::kMaxNameBytes + 64;

constexpr CallMarkers kDeepseekMarkers = {
    .open = "<｜tool▁call▁begin｜>",
    .close = "<｜tool▁call▁end｜>",
    .section_open = "<｜tool▁calls▁begin｜>",
    .section_close = "<｜tool▁calls▁end｜>"};
constexpr HeadedCallSyntax kDeepseekCallSyntax = {
    .markers = kDeepseekMarkers,
    .separator = "<｜tool▁sep｜>",
    .has_second_part = true,
    .before_name = "function<｜tool▁sep｜>",
    .behind_name = "\n```json\n",
    .behind_arguments = "\n```",
    .between = "\n"};
constexpr HeadedCallSyntax kDeepseekV31CallSyntax = {
    .markers = kDeepseekMarkers,
    .separator = "<｜tool▁sep｜>",
    .has_second_part = true,
    .behind_name = "<｜tool▁sep｜>"};
constexpr HeadedCallSyntax kKimiCallSyntax = {
    .markers = {.open = "<|tool_call_begin|>",
                .close = "<|tool_call_end|>",
                .section_open = "<|tool_calls_section_begin|>",
                .section_close = "<|tool_calls_section_end|>"},
    .separator = "<|tool_call_argument_begin|>",
    .numbered = true,
    .before_name = kFunctions,
    .behind_name = "<|tool_call_argument_begin|>"};

// f of functions.f:0.
absl::string_view WithoutNumber(absl::string_view name) {
  absl::ConsumePrefix(&name, kFunctions);
  const size_t colon = name.rfind(':');
  if (colon == absl::string_view::npos || colon + 1 == name.size()) return name;
  const absl::string_view number = name.substr(colon + 1);
  const bool digits = std::all_of(number.begin(), number.end(), [](char c) {
    return absl::ascii_isdigit(static_cast<unsigned char>(c));
  });
  return digits ? name.substr(0, colon) : name;
}

}  // namespace

const HeadedCallSyntax* HeadedSyntaxOf(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kDeepseek:
      return &kDeepseekCallSyntax;
    case ToolCallFormat::kDeepseekV31:
      return &kDeepseekV31CallSyntax;
    case ToolCallFormat::kKimi:
      return &kKimiCallSyntax;
    default:
      return nullptr;
  }
}

bool FitsIntoHead(absl::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return absl::StrContains("<>`{:", c) ||
           absl::ascii_isspace(static_cast<unsigned char>(c));
  });
}

HeadedToolCall::Step HeadedToolCall::Take(char c) {
  switch (state_) {
    case State::kHead:
      return TakeHead(c);
    case State::kBehindHead:
      if (IsJsonSpace(c)) return Step::kMore;
      if (c == '{' && SetName(head_)) return TakeArgument(c);
      if (!syntax_.has_second_part || c == '{') return Step::kBad;
      state_ = State::kSecondPart;
      return TakeSecondPart(c);
    case State::kSecondPart:
      return TakeSecondPart(c);
    case State::kFence:
      return TakeFence(c);
    case State::kArguments:
      return TakeArgument(c);
    case State::kFenceEnd:
      if (fence_.empty() && IsJsonSpace(c)) return Step::kMore;
      fence_.push_back(c);
      if (!absl::StartsWith(kFence, fence_)) return Step::kBad;
      if (fence_.size() < kFence.size()) return Step::kMore;
      state_ = State::kOver;
      return Step::kLast;
    case State::kOver:
      return Step::kBad;
  }
  LOG(FATAL) << "no such state";
}

HeadedToolCall::Step HeadedToolCall::TakeHead(char c) {
  head_.push_back(c);
  if (absl::EndsWith(head_, syntax_.separator)) {
    head_.resize(head_.size() - syntax_.separator.size());
    state_ = State::kBehindHead;
    return Step::kMore;
  }
  return head_.size() <= kMaxHeadBytes + syntax_.separator.size() ? Step::kMore
                                                                  : Step::kBad;
}

// A line, or up to what cannot be a name's.
HeadedToolCall::Step HeadedToolCall::TakeSecondPart(char c) {
  if (c != '\n' && c != '`' && c != '{') {
    second_part_.push_back(c);
    return second_part_.size() <= kMaxHeadBytes ? Step::kMore : Step::kBad;
  }
  if (!SetName(second_part_)) return Step::kBad;
  state_ = State::kFence;
  return TakeFence(c);
}

HeadedToolCall::Step HeadedToolCall::TakeFence(char c) {
  if (IsJsonSpace(c)) return Step::kMore;
  if (c == '{') {
    const bool whole =
        fence_.empty() || fence_ == kFence || fence_ == kJsonFence;
    return whole ? TakeArgument(c) : Step::kBad;
  }
  fence_.push_back(c);
  return absl::StartsWith(kJsonFence, fence_) ? Step::kMore : Step::kBad;
}

HeadedToolCall::Step HeadedToolCall::TakeArgument(char c) {
  state_ = State::kArguments;
  const bool in_string = scanner_.in_string();
  const JsonScanner::Step step = scanner_.Take(c);
  if (step == JsonScanner::Step::kBad) return Step::kBad;
  AppendJsonByte(c, in_string, &arguments_);
  // An object ends with its brace.
  if (step == JsonScanner::Step::kMore) return Step::kMore;
  if (fence_.empty()) {
    state_ = State::kOver;
    return Step::kLast;
  }
  fence_.clear();
  state_ = State::kFenceEnd;
  return Step::kMore;
}

bool HeadedToolCall::SetName(absl::string_view name) {
  name = absl::StripAsciiWhitespace(name);
  if (syntax_.numbered) name = WithoutNumber(name);
  if (name.empty() || name.size() > ToolCallRules::kMaxNameBytes ||
      !(rules_.names.empty() || rules_.names.contains(name))) {
    return false;
  }
  name_ = std::string(name);
  return true;
}

std::string HeadedToolCall::TakeArguments() {
  return std::exchange(arguments_, "");
}

}  // namespace baton::router
