#include "router/tool_calls/tool_call_stream.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/tool_calls/headed_tool_call.h"
#include "router/tool_calls/tagged_tool_call.h"
#include "router/tool_calls/tool_call_object.h"

namespace baton::router {
namespace {

using CallKind = ToolCallEvent::Kind;

CallMarkers MarkersOf(ToolCallFormat format) {
  switch (format) {
    case ToolCallFormat::kHermes:
    case ToolCallFormat::kGlm:
    case ToolCallFormat::kQwenCoder:
      return {.open = kOpenMarker, .close = kCloseMarker};
    case ToolCallFormat::kDeepseek:
    case ToolCallFormat::kDeepseekV31:
    case ToolCallFormat::kKimi:
      return HeadedSyntaxOf(format)->markers;
    case ToolCallFormat::kMistral:
      return {.open = "[TOOL_CALLS]"};
    case ToolCallFormat::kLlamaJson:
      return {};
    case ToolCallFormat::kHarmony:
      break;
  }
  LOG(FATAL) << "no such format";
}

// Between two calls.
char Separator(ToolCallFormat format) {
  return format == ToolCallFormat::kMistral ? ',' : ';';
}

}  // namespace

ToolCallStream::ToolCallStream(ToolCallFormat format,
                               const std::vector<std::string>& names,
                               TextsOfTools texts)
    : format_(format), markers_(MarkersOf(format)) {
  rules_.parameters = format == ToolCallFormat::kLlamaJson;
  rules_.names.insert(names.begin(), names.end());
  rules_.texts = std::move(texts);
}

std::vector<ToolCallEvent> ToolCallStream::Push(absl::string_view text) {
  CHECK(!finished_);
  for (const char c : text) {
    while (!Take(c)) {
    }
    if (held_.size() > kMaxHeldBytes) GiveBackHeld();
  }
  return std::exchange(events_, {});
}

std::vector<ToolCallEvent> ToolCallStream::Finish() {
  CHECK(!std::exchange(finished_, true));
  switch (state_) {
    case State::kText: {
      // A closing marker that is cut off is no content either.
      const bool closes =
          (close_due_ && absl::StartsWith(markers_.close, HeldMarker())) ||
          absl::StartsWith(markers_.section_close, HeldMarker());
      const bool blank = blank_ && (marker_bytes_ == 0 || closes);
      if (!blank || calls_ == 0) GiveBackHeld();
      break;
    }
    case State::kBeforeArray:
      GiveBackHeld();
      break;
    case State::kBeforeCall:
      if (!behind_separator_) GiveBackHeld();
      break;
    case State::kCall:
      if (begun_) {
        EndCall();
      } else {
        GiveBackHeld();
      }
      break;
    case State::kBroken:
      Emit(CallKind::kArguments, held_);
      EndCall();
      break;
    case State::kAfterCall:
      break;
  }
  return std::exchange(events_, {});
}

bool ToolCallStream::Take(char c) {
  switch (state_) {
    case State::kText:
      return TakeText(c);
    case State::kBeforeArray:
      return TakeBeforeArray(c);
    case State::kBeforeCall:
      return TakeBeforeCall(c);
    case State::kCall:
      return TakeCall(c);
    case State::kBroken:
      return TakeBroken(c);
    case State::kAfterCall:
      return TakeAfterCall(c);
  }
  LOG(FATAL) << "no such state";
}

bool ToolCallStream::TakeText(char c) {
  if (TakeMarker(c)) return true;
  if (blank_ && marker_bytes_ == 0 && IsJsonSpace(c)) {
    Hold(c);
    return true;
  }
  if (at_start_ &&
      ((format_ == ToolCallFormat::kLlamaJson && c == '{') ||
       // The array begins as the marker does.
       (format_ == ToolCallFormat::kMistral && HeldMarker() == "["))) {
    BeginCalls(/*marked=*/false);
    return false;
  }
  const bool held_marker = marker_bytes_ > 0;
  GiveBackHeld();
  if (held_marker) return false;  // the byte may begin another one
  Emit(CallKind::kContent, absl::string_view(&c, 1));
  return true;
}

bool ToolCallStream::TakeBeforeArray(char c) {
  if (c == '[') {
    state_ = State::kBeforeCall;
  } else if (!IsJsonSpace(c)) {
    GiveBackHeld();
    return false;
  }
  Hold(c);
  return true;
}

bool ToolCallStream::TakeBeforeCall(char c) {
  if (IsJsonSpace(c)) {
    Hold(c);
    return true;
  }
  call_ = calls_ < kMaxCalls ? NewCall(c) : nullptr;
  if (call_ != nullptr) {
    state_ = State::kCall;
  } else {
    GiveBackHeld();
  }
  return false;
}

std::unique_ptr<ToolCallBody> ToolCallStream::NewCall(char first) const {
  if (const TaggedCallSyntax* const syntax = SyntaxOf(format_)) {
    return std::make_unique<TaggedToolCall>(&rules_, syntax);
  }
  if (const HeadedCallSyntax* const syntax = HeadedSyntaxOf(format_)) {
    return std::make_unique<HeadedToolCall>(&rules_, syntax);
  }
  if (first != '{') return nullptr;
  return std::make_unique<ToolCallObject>(&rules_,
                                          /*first_key_counts=*/!marked_);
}

bool ToolCallStream::TakeCall(char c) {
  const ToolCallBody::Step step = call_->Take(c);
  if (step == ToolCallBody::Step::kBad) {
    if (!begun_) {
      GiveBackHeld();
    } else if (call_->has_all_arguments()) {
      EndCall();  // as if the object had ended: models forget braces
    } else {
      PassArguments();
      state_ = State::kBroken;
    }
    return false;
  }
  if (!begun_) Hold(c);
  PassArguments();
  if (step == ToolCallBody::Step::kLast) EndCall();
  return true;
}

bool ToolCallStream::TakeBroken(char c) {
  if (TakeMarker(c)) return true;
  if (marker_bytes_ > 0) {
    Emit(CallKind::kArguments, held_);
    held_.clear();
    marker_bytes_ = 0;
    return false;
  }
  Emit(CallKind::kArguments, absl::string_view(&c, 1));
  return true;
}

bool ToolCallStream::TakeAfterCall(char c) {
  if (c == ']' && format_ == ToolCallFormat::kMistral) {
    BeginBlankText();
    return true;
  }
  if (c == Separator(format_)) {
    state_ = State::kBeforeCall;
    behind_separator_ = true;
  } else if (!IsJsonSpace(c)) {
    GiveBackHeld();
    return false;
  }
  Hold(c);
  return true;
}

bool ToolCallStream::TakeMarker(char c) {
  const std::string text = absl::StrCat(HeldMarker(), absl::string_view(&c, 1));
  if (!MayBeginMarker(text)) return false;
  Hold(c);
  ++marker_bytes_;
  if (text == markers_.open) {
    BeginCalls(/*marked=*/true);
  } else if (text == markers_.close) {
    if (state_ == State::kBroken) EndCall();
    BeginBlankText();
  } else if (text == markers_.section_close && calls_ > 0) {
    BeginBlankText();
  } else if (text == markers_.section_open || text == markers_.section_close) {
    // Content if no call follows.
    blank_ = true;
    marker_bytes_ = 0;
  }
  return true;
}

absl::string_view ToolCallStream::HeldMarker() const {
  return absl::string_view(held_).substr(held_.size() - marker_bytes_);
}

bool ToolCallStream::MayBeginMarker(absl::string_view text) const {
  const auto may = [text](absl::string_view marker) {
    return absl::StartsWith(marker, text);
  };
  if (state_ != State::kBroken &&
      (may(markers_.open) || may(markers_.section_open) ||
       may(markers_.section_close))) {
    return true;
  }
  const bool may_close =
      close_due_ || (state_ == State::kBroken && MarksEachCall(format_));
  return may_close && may(markers_.close);
}

void ToolCallStream::BeginCalls(bool marked) {
  const bool array = marked && format_ == ToolCallFormat::kMistral;
  state_ = array ? State::kBeforeArray : State::kBeforeCall;
  marked_ = marked;
  behind_separator_ = false;
  marker_bytes_ = 0;
}

void ToolCallStream::PassArguments() {
  if (!call_->begun()) return;
  if (!begun_) {
    begun_ = true;
    ++calls_;
    held_.clear();
    Emit(CallKind::kBegun, call_->name());
  }
  Emit(CallKind::kArguments, call_->TakeArguments());
}

void ToolCallStream::EndCall() {
  Emit(CallKind::kEnded, "");
  begun_ = false;
  const bool closed = call_ != nullptr && call_->closed();
  call_.reset();
  BeginBlankText();
  if (MarksEachCall(format_)) {
    close_due_ = !closed;
  } else {
    state_ = State::kAfterCall;
  }
}

void ToolCallStream::BeginBlankText() {
  state_ = State::kText;
  at_start_ = false;
  blank_ = true;
  close_due_ = false;
  held_.clear();
  marker_bytes_ = 0;
}

void ToolCallStream::GiveBackHeld() {
  Emit(CallKind::kContent, held_);
  call_.reset();
  BeginBlankText();
  blank_ = false;
}

void ToolCallStream::Emit(CallKind kind, absl::string_view text) {
  const bool pieces =
      kind == CallKind::kContent || kind == CallKind::kArguments;
  if (pieces && text.empty()) return;
  if (pieces && !events_.empty() && events_.back().kind == kind) {
    events_.back().text.append(text.data(), text.size());
    return;
  }
  const size_t call = kind == CallKind::kContent ? 0 : calls_ - 1;
  events_.push_back({kind, call, std::string(text)});
}

}  // namespace baton::router
