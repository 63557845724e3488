// Tells apart what a model writes in one answer of a conversation: what it
// thinks, what it says, and the tool calls that it makes. Over text: in the
// router alone. Pure; one per answer, one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "router/harmony/harmony_stream.h"
#include "router/reasoning/reasoning_stream.h"
#include "router/tool_calls/answer_event.h"
#include "router/tool_calls/tool_call_stream.h"

namespace baton::router::http {

// Reasoning comes before all else, but where answers are messages. Calls are as
// ToolCallStream has them.
class AnswerReader final {
 public:
  // `calls`: how the model writes calls of the tools in `names`; none: it may
  // not call any. `texts` as ToolCallStream has them.
  AnswerReader(ReasoningStart reasoning, std::optional<ToolCallFormat> calls,
               const std::vector<std::string>& names,
               const TextsOfTools& texts = {});
  // Of answers that are messages: as HarmonyStream has these.
  AnswerReader(absl::string_view harmony_opening,
               const std::vector<std::string>& names);

  // What is certain with this response, the last one of the answer included,
  // and was not before.
  std::vector<AnswerEvent> Read(const v1::GenerateResponse& response);

  // How many calls have begun.
  size_t calls() const {
    if (harmony_.has_value()) return harmony_->calls();
    return calls_.has_value() ? calls_->calls() : 0;
  }
  // The answer ended in the middle of a call.
  bool cut() const { return cut_; }
  // Tokens of the responses in which the model thought, markers included: all
  // of each, and there may be several where they came in one moment.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void Say(ReasoningStream::Piece piece, std::vector<AnswerEvent>* events);
  void Call(std::vector<ToolCallEvent> said, bool last,
            std::vector<AnswerEvent>* events);
  std::vector<AnswerEvent> ReadMessages(const v1::GenerateResponse& response);

  std::optional<HarmonyStream> harmony_;  // in the place of the next two
  ReasoningStream reasoning_;
  std::optional<ToolCallStream> calls_;
  bool cut_ = false;
  int64_t undecided_tokens_ = 0;  // may be of reasoning
  int64_t reasoning_tokens_ = 0;
};

}  // namespace baton::router::http
