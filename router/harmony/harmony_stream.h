// Tells apart what a model writes in the messages of Harmony
// (harmony_format.h): what it thinks, what it says, and the tool calls that it
// makes, while it writes them.
//
// Pure; one per answer, one thread at a time.
//
// The life of an output:
//   kBehind       a message is over, if <|start|> or the end of the output
//                 follows; white space
//   -> kRole      behind <|start|>, where the prompt ends, too
//   -> kChannel   behind <|channel|>
//   -> kConstraint   behind <|constrain|>
//   -> kBody      behind <|message|>
//   -> kBehind    behind <|end|>, <|return|> or <|call|>; or kRole behind
//                 <|start|>
// Until a header is there whole, all of it may turn out to be text of the body
// before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "router/harmony/harmony_format.h"
#include "router/tool_calls/answer_event.h"
#include "router/tool_calls/json_scanner.h"

namespace baton::router {

// Messages of the channel analysis are reasoning, and so are those to
// recipients that are no functions; all others to nobody are content. Between
// two messages of one kind there are two line breaks.
//
// A message to a function is a call if the function is one of `names`, and its
// body begins as an object or is empty, which stands for {}. Else it is content
// as it was written, header included. What a call's arguments are: as
// ToolCallStream has them.
//
// Markers and headers are in no event. Where they do not stand as they should,
// they are text of the message around them; outside of any message, content. A
// header that the end of the output cuts off is left out.
//
// What the events say in all does not depend on how the text was cut into
// pieces. Their texts are valid UTF-8 when the pieces are.
class HarmonyStream final {
 public:
  // `opening`: what the prompt has begun of a message (HarmonyOpening).
  // `names`: what may be called; none: nothing.
  HarmonyStream(absl::string_view opening,
                const std::vector<std::string>& names);

  // What is certain with this text and was not before.
  std::vector<AnswerEvent> Push(absl::string_view text);

  // The output is over: the rest. REQUIRES: nothing is pushed afterwards.
  std::vector<AnswerEvent> Finish();

  // How many calls have begun.
  size_t calls() const { return calls_; }
  // The output ended before the last call's arguments did.
  bool cut() const { return cut_; }

  // What came last is of a header.
  bool in_header() const {
    return state_ == State::kRole || state_ == State::kChannel ||
           state_ == State::kConstraint;
  }
  // What comes next is of a message's body, and thought.
  bool thinking() const {
    return state_ == State::kBody && body_ == Body::kReasoning;
  }
  // And content.
  bool saying() const {
    return state_ == State::kBody && body_ == Body::kContent;
  }
  // How many messages of reasoning have begun.
  size_t thoughts() const { return thoughts_; }

 private:
  enum class State : uint8_t { kBehind, kRole, kChannel, kConstraint, kBody };
  enum class Body : uint8_t {
    kContent,
    kReasoning,
    kCallAhead,  // the header is that of a call
    kCall,       // its arguments
    kCallOver,   // behind them
  };

  void Take(char c);
  void TakeByte(char c);
  void TakeMarker(absl::string_view marker);
  void BeginHeader(absl::string_view marker, State state);
  void EndHeader();
  void EndMessage();
  // What is held is text of the body.
  void GiveBack();

  void Say(absl::string_view text);
  void SayByte(char c);  // of a call
  void Begin(Body body);
  void BeginCall();
  void Emit(AnswerEvent::Kind kind, absl::string_view text);

  absl::flat_hash_set<std::string> names_;

  State state_ = State::kBehind;
  Body body_ = Body::kContent;
  std::string marker_;    // what may become one
  std::string held_;      // and what may be a header, or the end before one
  size_t header_at_ = 0;  // in held_
  std::string role_;
  std::string channel_;

  std::string function_;     // of a call
  std::string call_header_;  // in kCallAhead, with white space behind it
  JsonScanner arguments_;
  bool broken_ = false;  // they are no JSON

  bool said_[2] = {};    // something of kReasoning, kContent
  bool breaks_[2] = {};  // line breaks come before what follows of it
  size_t calls_ = 0;
  size_t thoughts_ = 0;
  bool cut_ = false;
  std::vector<AnswerEvent> events_;
  bool finished_ = false;
};

}  // namespace baton::router
