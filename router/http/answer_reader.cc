#include "router/http/answer_reader.h"

#include <utility>

namespace baton::router::http {

AnswerReader::AnswerReader(ReasoningStart reasoning,
                           std::optional<ToolCallFormat> calls,
                           const std::vector<std::string>& names,
                           const TextsOfTools& texts)
    : reasoning_(reasoning) {
  if (calls.has_value()) calls_.emplace(*calls, names, texts);
}

AnswerReader::AnswerReader(absl::string_view harmony_opening,
                           const std::vector<std::string>& names)
    : harmony_(std::in_place, harmony_opening, names),
      reasoning_(ReasoningStart::kNone) {}

void AnswerReader::Call(std::vector<ToolCallEvent> said, bool last,
                        std::vector<AnswerEvent>* events) {
  using From = ToolCallEvent::Kind;
  using To = AnswerEvent::Kind;
  for (ToolCallEvent& event : said) {
    switch (event.kind) {
      case From::kContent:
        events->push_back(
            {.kind = To::kContent, .text = std::move(event.text)});
        break;
      case From::kBegun:
      case From::kArguments:
        events->push_back({.kind = event.kind == From::kBegun ? To::kCallBegun
                                                              : To::kArguments,
                           .call = event.call,
                           .text = std::move(event.text)});
        break;
      case From::kEnded:
        if (last) cut_ = true;
        break;
    }
  }
}

void AnswerReader::Say(ReasoningStream::Piece piece,
                       std::vector<AnswerEvent>* events) {
  using Kind = AnswerEvent::Kind;
  if (!piece.reasoning.empty()) {
    events->push_back(
        {.kind = Kind::kReasoning, .text = std::move(piece.reasoning)});
  }
  if (piece.answer.empty()) return;
  if (calls_.has_value()) {
    Call(calls_->Push(piece.answer), /*last=*/false, events);
  } else {
    events->push_back(
        {.kind = Kind::kContent, .text = std::move(piece.answer)});
  }
}

// Tokens of a header are of reasoning if the message is.
std::vector<AnswerEvent> AnswerReader::ReadMessages(
    const v1::GenerateResponse& response) {
  const size_t thoughts = harmony_->thoughts();
  const bool thought = harmony_->thinking();
  std::vector<AnswerEvent> said = harmony_->Push(response.text());
  const int64_t tokens = response.token_ids_size();
  if (thought || harmony_->thinking() || harmony_->thoughts() > thoughts) {
    reasoning_tokens_ += std::exchange(undecided_tokens_, 0) + tokens;
  } else if (harmony_->in_header()) {
    undecided_tokens_ += tokens;
  } else {
    undecided_tokens_ = 0;
  }
  if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    for (AnswerEvent& event : harmony_->Finish()) {
      said.push_back(std::move(event));
    }
    cut_ = harmony_->cut();
  }
  return said;
}

std::vector<AnswerEvent> AnswerReader::Read(
    const v1::GenerateResponse& response) {
  if (harmony_.has_value()) return ReadMessages(response);
  std::vector<AnswerEvent> events;
  const bool thought = reasoning_.undecided() || reasoning_.thinking();
  Say(reasoning_.Push(response.text()), &events);
  if (thought) undecided_tokens_ += response.token_ids_size();
  if (reasoning_.thought()) {
    reasoning_tokens_ += std::exchange(undecided_tokens_, 0);
  }
  if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    Say(reasoning_.Finish(), &events);
    if (calls_.has_value()) Call(calls_->Finish(), /*last=*/true, &events);
  }
  return events;
}

}  // namespace baton::router::http
