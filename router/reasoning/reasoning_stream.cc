#include "router/reasoning/reasoning_stream.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace baton::router {

ReasoningStream::ReasoningStream(ReasoningStart start)
    : open_(start == ReasoningStart::kOpen),
      state_(start == ReasoningStart::kNone ? State::kAnswer : State::kBefore) {
}

void ReasoningStream::TakeBefore(char c, Piece* piece) {
  held_.push_back(c);
  if (matched_ == 0 && absl::ascii_isspace(static_cast<unsigned char>(c))) {
    return;
  }
  if (c == kThinkBegins[matched_]) {
    if (++matched_ < kThinkBegins.size()) return;
    held_.clear();
    matched_ = 0;
    state_ = State::kThinking;
    return;
  }
  const std::string text = std::exchange(held_, "");
  matched_ = 0;
  if (open_) {
    state_ = State::kThinking;
    for (const char again : text) TakeThought(again, piece);
  } else {
    state_ = State::kAnswer;
    piece->answer.append(text);
  }
}

// Those at the beginning are left out.
void ReasoningStream::PassBreaks(Piece* piece) {
  if (passed_) piece->reasoning.append(breaks_, '\n');
  breaks_ = 0;
}

void ReasoningStream::TakeThought(char c, Piece* piece) {
  if (matched_ > 0 && c != kThinkEnds[matched_]) {
    // Not the marker; another may begin here.
    PassBreaks(piece);
    absl::StrAppend(&piece->reasoning, kThinkEnds.substr(0, matched_));
    passed_ = true;
    matched_ = 0;
  }
  if (c == kThinkEnds[matched_]) {
    if (++matched_ < kThinkEnds.size()) return;
    matched_ = breaks_ = 0;
    state_ = State::kBehind;
    ended_ = true;
  } else if (c == '\n') {
    ++breaks_;
  } else {
    PassBreaks(piece);
    piece->reasoning.push_back(c);
    passed_ = true;
  }
}

ReasoningStream::Piece ReasoningStream::Push(absl::string_view text) {
  Piece piece;
  for (size_t i = 0; i < text.size(); ++i) {
    switch (state_) {
      case State::kBefore:
        TakeBefore(text[i], &piece);
        break;
      case State::kThinking:
        TakeThought(text[i], &piece);
        break;
      case State::kBehind:
        if (text[i] == '\n') break;
        state_ = State::kAnswer;
        [[fallthrough]];
      case State::kAnswer:
        absl::StrAppend(&piece.answer, text.substr(i));
        return piece;
    }
  }
  return piece;
}

ReasoningStream::Piece ReasoningStream::Finish() {
  Piece piece;
  switch (state_) {
    case State::kBefore:
      (open_ ? piece.reasoning : piece.answer) = std::exchange(held_, "");
      break;
    case State::kThinking:
      // It was cut off. Line breaks may have been the last ones.
      if (matched_ > 0) PassBreaks(&piece);
      absl::StrAppend(&piece.reasoning, kThinkEnds.substr(0, matched_));
      break;
    case State::kBehind:
    case State::kAnswer:
      break;
  }
  return piece;
}

}  // namespace baton::router
