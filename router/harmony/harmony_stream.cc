#include "router/harmony/harmony_stream.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "router/harmony/harmony_header.h"
#include "router/tool_calls/tool_call_stream.h"

namespace baton::router {
namespace {

using AnswerKind = AnswerEvent::Kind;

bool MayBeMarker(absl::string_view text) {
  for (const absl::string_view marker : kHarmonyMarkers) {
    if (absl::StartsWith(marker, text)) return true;
  }
  return false;
}

bool EndsMessage(absl::string_view marker) {
  return marker == kHarmonyEnd || marker == kHarmonyReturn ||
         marker == kHarmonyCall;
}

}  // namespace

HarmonyStream::HarmonyStream(absl::string_view opening,
                             const std::vector<std::string>& names)
    : names_(names.begin(), names.end()) {
  if (opening.empty()) return;
  TakeMarker(kHarmonyStart);
  for (const char c : opening) Take(c);
  // All of that is the prompt's.
  events_.clear();
  held_.clear();
  call_header_.clear();
  header_at_ = 0;
  said_[0] = said_[1] = breaks_[0] = breaks_[1] = false;
}

std::vector<AnswerEvent> HarmonyStream::Push(absl::string_view text) {
  CHECK(!finished_);
  while (!text.empty()) {
    if (state_ != State::kBody || !marker_.empty() || text[0] == '<') {
      Take(text[0]);
      text.remove_prefix(1);
      continue;
    }
    const absl::string_view plain = text.substr(0, text.find('<'));
    Say(plain);
    text.remove_prefix(plain.size());
  }
  return std::exchange(events_, {});
}

std::vector<AnswerEvent> HarmonyStream::Finish() {
  CHECK(!std::exchange(finished_, true));
  // Of a marker that never was one.
  for (const char c : std::exchange(marker_, "")) TakeByte(c);
  if (in_header() && !absl::StrContains(held_, "|>")) GiveBack();
  held_.clear();
  cut_ = body_ == Body::kCallAhead || body_ == Body::kCall;
  if (body_ == Body::kCallAhead) BeginCall();
  return std::exchange(events_, {});
}

// In no marker does its first byte come again.
void HarmonyStream::Take(char c) {
  if (c == '<') {
    for (const char again : std::exchange(marker_, std::string(1, c))) {
      TakeByte(again);
    }
    return;
  }
  if (marker_.empty()) return TakeByte(c);
  marker_.push_back(c);
  if (!MayBeMarker(marker_)) {
    for (const char again : std::exchange(marker_, {})) TakeByte(again);
  } else if (absl::EndsWith(marker_, "|>")) {
    TakeMarker(std::exchange(marker_, {}));
  }
}

void HarmonyStream::TakeByte(char c) {
  switch (state_) {
    case State::kBody:
      Say(absl::string_view(&c, 1));
      return;
    case State::kBehind:
      if (!IsJsonSpace(c)) {
        GiveBack();
        Say(absl::string_view(&c, 1));
        return;
      }
      break;
    case State::kRole:
      role_.push_back(c);
      if (!MayBeHarmonyRole(role_)) {
        held_.push_back(c);
        GiveBack();
        return;
      }
      break;
    case State::kChannel:
      channel_.push_back(c);
      break;
    case State::kConstraint:
      break;
  }
  held_.push_back(c);
  if (held_.size() > kMaxHarmonyHeader) GiveBack();
}

void HarmonyStream::TakeMarker(absl::string_view marker) {
  const bool starts = marker == kHarmonyStart;
  switch (state_) {
    case State::kBody:
      if (starts) return BeginHeader(marker, State::kRole);
      if (!EndsMessage(marker)) return Say(marker);
      held_ = std::string(marker);
      state_ = State::kBehind;
      return;
    case State::kBehind:
      if (starts) return BeginHeader(marker, State::kRole);
      // Models forget the role.
      if (marker == kHarmonyChannel) {
        BeginHeader(marker, State::kChannel);
        return;
      }
      break;
    case State::kRole:
      if (!IsHarmonyRole(role_)) break;
      if (marker == kHarmonyChannel) {
        absl::StrAppend(&held_, marker);
        state_ = State::kChannel;
        return;
      }
      [[fallthrough]];
    case State::kChannel:
      if (marker == kHarmonyConstrain) {
        absl::StrAppend(&held_, marker);
        state_ = State::kConstraint;
        return;
      }
      [[fallthrough]];
    case State::kConstraint:
      if (marker != kHarmonyMessage) break;
      absl::StrAppend(&held_, marker);
      EndHeader();
      return;
  }
  GiveBack();
  TakeMarker(marker);
}

void HarmonyStream::BeginHeader(absl::string_view marker, State state) {
  header_at_ = held_.size();
  absl::StrAppend(&held_, marker);
  role_ = state == State::kRole ? "" : std::string(kHarmonyRole);
  channel_.clear();
  state_ = state;
}

void HarmonyStream::GiveBack() {
  const std::string text = std::exchange(held_, "");
  state_ = State::kBody;
  Say(text);
}

void HarmonyStream::EndMessage() {
  if (body_ != Body::kCallAhead) return;
  BeginCall();
  Emit(AnswerKind::kArguments, "{}");
}

void HarmonyStream::EndHeader() {
  EndMessage();
  const std::string header = std::exchange(held_, "").substr(header_at_);
  state_ = State::kBody;
  HarmonyHeader read = ReadHarmonyHeader(role_, channel_);
  // Models forget the prefix.
  if (names_.contains(read.recipient)) {
    read.recipient = absl::StrCat(kHarmonyFunctions, read.recipient);
  }
  std::string name;
  switch (BodyOf(read, &name)) {
    case HarmonyBody::kReasoning:
      ++thoughts_;
      return Begin(Body::kReasoning);
    case HarmonyBody::kContent:
      return Begin(Body::kContent);
    case HarmonyBody::kFunction:
      break;
  }
  if (!names_.contains(name) || calls_ >= ToolCallStream::kMaxCalls) {
    Begin(Body::kContent);
    Say(header);
    return;
  }
  body_ = Body::kCallAhead;
  function_ = std::move(name);
  call_header_ = header;
}

void HarmonyStream::Begin(Body body) {
  body_ = body;
  const size_t kind = body == Body::kContent ? 1 : 0;
  breaks_[kind] = said_[kind];
}

void HarmonyStream::Say(absl::string_view text) {
  while (!text.empty()) {
    if (body_ == Body::kContent) return Emit(AnswerKind::kContent, text);
    if (body_ == Body::kReasoning) return Emit(AnswerKind::kReasoning, text);
    SayByte(text[0]);
    text.remove_prefix(1);
  }
}

void HarmonyStream::SayByte(char c) {
  const absl::string_view byte(&c, 1);
  if (body_ == Body::kCallAhead) {
    if (c == '{') {
      BeginCall();
    } else {
      call_header_.push_back(c);
      if (IsJsonSpace(c) && call_header_.size() <= kMaxHarmonyHeader) return;
      Begin(Body::kContent);
      return Emit(AnswerKind::kContent, std::exchange(call_header_, ""));
    }
  }
  if (body_ == Body::kCallOver) {
    if (IsJsonSpace(c)) return;
    Begin(Body::kContent);
    return Emit(AnswerKind::kContent, byte);
  }
  const bool escaped = !broken_ && arguments_.in_string() &&
                       static_cast<unsigned char>(c) < 0x20;
  if (!broken_) {
    const JsonScanner::Step step = arguments_.Take(c);
    broken_ = step == JsonScanner::Step::kBad;
    if (step == JsonScanner::Step::kLast) body_ = Body::kCallOver;
  }
  Emit(AnswerKind::kArguments, escaped ? absl::StrFormat("\\u%04x", c) : byte);
}

void HarmonyStream::BeginCall() {
  ++calls_;
  call_header_.clear();
  body_ = Body::kCall;
  arguments_ = JsonScanner();
  broken_ = false;
  events_.push_back({AnswerKind::kCallBegun, calls_ - 1, function_});
}

void HarmonyStream::Emit(AnswerKind kind, absl::string_view text) {
  if (text.empty()) return;
  const bool argument = kind == AnswerKind::kArguments;
  if (events_.empty() || events_.back().kind != kind) {
    events_.push_back({kind, argument ? calls_ - 1 : 0, ""});
  }
  std::string& to = events_.back().text;
  if (!argument) {
    const size_t index = kind == AnswerKind::kContent ? 1 : 0;
    said_[index] = true;
    if (std::exchange(breaks_[index], false)) to.append("\n\n");
  }
  to.append(text.data(), text.size());
}

}  // namespace baton::router
