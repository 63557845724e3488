// Tells what a model thinks from what it answers, while it writes both.
//
// Pure; one per answer, one thread at a time.
//
// The life of an output:
//   kBefore     white space, or part of <think>: either may follow
//   -> kThinking  up to </think>, or all of it if that never comes
//   -> kBehind    line breaks behind </think>, which belong to neither
//   -> kAnswer    the rest, with whatever markers
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "router/reasoning/reasoning_start.h"

namespace baton::router {

class ReasoningStream final {
 public:
  struct Piece {
    std::string reasoning;
    std::string answer;  // comes behind it
  };

  explicit ReasoningStream(ReasoningStart start);

  // What is certain with this text and was not before. Of the markers, and of
  // line breaks beside them (and white space before the first), nothing is
  // passed on. What it says in all does not depend on how the text was cut into
  // pieces. Its texts are valid UTF-8 when the pieces are.
  Piece Push(absl::string_view text);

  // The output is over: the rest. REQUIRES: nothing is pushed afterwards.
  Piece Finish();

  // Nothing is thought yet, and something may be.
  bool undecided() const { return state_ == State::kBefore && !open_; }
  // Whether what came last was thought, markers included.
  bool thinking() const {
    return state_ == State::kThinking || (state_ == State::kBefore && open_);
  }
  // Something was, if only markers.
  bool thought() const { return thinking() || ended_; }

 private:
  enum class State : uint8_t { kBefore, kThinking, kBehind, kAnswer };

  void TakeBefore(char c, Piece* piece);
  void TakeThought(char c, Piece* piece);
  void PassBreaks(Piece* piece);

  const bool open_;  // the prompt has begun it
  State state_;
  // In kBefore: what may become <think>, and white space before it.
  std::string held_;
  // Bytes of the marker that is looked for which came last.
  size_t matched_ = 0;
  // In kThinking: line breaks before those.
  size_t breaks_ = 0;
  bool passed_ = false;  // something, as reasoning
  bool ended_ = false;   // there was a </think>
};

}  // namespace baton::router
