// Finds the tool calls in the text that a model writes, while it writes it.
//
// Pure; one per answer, one thread at a time.
//
// The life of an answer:
//   kText        content; at its beginning, and behind calls, white space that
//                is content only if other content follows
//   -> kBeforeArray, kBeforeCall   what a call begins with was there
//   -> kCall     its JSON object, or its tags
//   -> kAfterCall (formats with separators) or kText
// Until a call has begun for sure, all of it may turn out to be content. If its
// arguments are broken after that, it is in kBroken until it is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/tool_calls/tool_call_body.h"
#include "router/tool_calls/tool_call_format.h"

namespace baton::router {

struct ToolCallEvent {
  enum class Kind : uint8_t {
    kContent,    // `text` is content; never empty
    kBegun,      // a call, of the name `text`
    kArguments,  // `text` is the next piece of its arguments; never empty
    kEnded,      // the call is over
  };

  Kind kind;
  size_t call = 0;  // which one, from 0; of the last three kinds
  std::string text;

  friend bool operator==(const ToolCallEvent&, const ToolCallEvent&) = default;
};

// Calls come one after the other: begun, pieces of arguments, ended. A call
// begins when its name is known and its arguments have begun to be an object.
// All pieces together are a JSON object, unless the model broke it off (when
// the answer is over) or wrote no JSON, or tags that are none: then they are
// what it wrote up to the end of the answer or, if it is there, the marker that
// ends the call (MarksEachCall).
//
// What turns out to be no call is content, unchanged: where no marker begins
// the calls, this also is an object with another first key than calls have, so
// that other JSON is not held back. White space before, behind and between
// calls is none if there is nothing else.
//
// What the events say in all does not depend on how the text was cut into
// pieces. Their texts are valid UTF-8 when the pieces are.
class ToolCallStream final {
 public:
  // Calls in one answer; what follows is content.
  static constexpr size_t kMaxCalls = 128;
  // What may be held back because it may become a call; of more than that, all
  // is content.
  static constexpr size_t kMaxHeldBytes = 64 * 1024;

  // Calls have one of `names`, or any name if it is empty. `texts` is for
  // formats whose values have no quotes.
  ToolCallStream(ToolCallFormat format, const std::vector<std::string>& names,
                 TextsOfTools texts = {});

  // Not copied nor moved: the call refers to the rules.
  ToolCallStream(const ToolCallStream&) = delete;
  ToolCallStream& operator=(const ToolCallStream&) = delete;

  // What is certain with this text and was not before.
  std::vector<ToolCallEvent> Push(absl::string_view text);

  // The answer is over: the rest. REQUIRES: nothing is pushed afterwards.
  std::vector<ToolCallEvent> Finish();

  // How many have begun.
  size_t calls() const { return calls_; }

 private:
  enum class State : uint8_t {
    kText,
    kBeforeArray,
    kBeforeCall,
    kCall,
    kBroken,
    kAfterCall,
  };

  // Each takes a byte. False if it has only changed the state, which is to take
  // the byte then.
  bool Take(char c);
  bool TakeText(char c);
  bool TakeBeforeArray(char c);
  bool TakeBeforeCall(char c);
  bool TakeCall(char c);
  bool TakeBroken(char c);
  bool TakeAfterCall(char c);
  // False also if it is not part of a marker.
  bool TakeMarker(char c);
  // Null: with this byte none begins.
  std::unique_ptr<ToolCallBody> NewCall(char first) const;

  // Changes of the state.
  void BeginCalls(bool marked);
  void EndCall();
  void BeginBlankText();
  void GiveBackHeld();  // as content

  void Hold(char c) { held_.push_back(c); }
  // The end of what is held, if it may be the beginning of a marker.
  absl::string_view HeldMarker() const;
  bool MayBeginMarker(absl::string_view text) const;
  void PassArguments();
  void Emit(ToolCallEvent::Kind kind, absl::string_view text);

  const ToolCallFormat format_;
  const CallMarkers markers_;
  ToolCallRules rules_;

  State state_ = State::kText;
  bool at_start_ = true;    // of the answer, but for white space
  bool blank_ = true;       // only white space since the start or the last call
  bool close_due_ = false;  // what closes a call may come
  bool marked_ = false;     // a marker, and no array or object, began the calls
  bool behind_separator_ = false;  // in kBeforeCall
  std::string held_;               // may become content
  size_t marker_bytes_ = 0;        // of HeldMarker()
  std::unique_ptr<ToolCallBody> call_;
  bool begun_ = false;  // call_ is, and was said to be
  size_t calls_ = 0;
  std::vector<ToolCallEvent> events_;
  bool finished_ = false;
};

}  // namespace baton::router
