// Writes answers as the OpenAI API has them: one JSON body, or the chunks of a
// stream of server-sent events. What the concatenated chunks say is what the
// body says.
//
// Plain values; one call at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "router/text/tokenizer.h"

namespace baton::router::http {

// What all chunks and the body of one answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..."
  int64_t created_unix_seconds = 0;
  std::string model;
  // Knows the tokens that have no place in the text; null: all have one.
  const Tokenizer* tokenizer = nullptr;
};

// The usage of several answers: prompts count once each.
struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_prompt_tokens = 0;
  // Of the output, what was thought; none: of a model that does not think.
  std::optional<int64_t> reasoning_tokens;
};

// Where the next token's text begins in the text so far, in characters (code
// points, as Python's clients index text). One that
// several tokens make up begins where the first of them does, and counts once
// its last byte has come.
class TextOffset final {
 public:
  void Add(absl::string_view bytes);
  int64_t characters() const { return characters_; }

 private:
  int64_t characters_ = 0;
  std::string open_;  // the beginning of a character
};

// A call of a function that the model asks for.
struct ToolCall {
  std::string id;
  std::string name;
  std::string arguments;  // JSON, as the model wrote it
};

// One of the answers of a call, as far as it has come.
struct Choice {
  std::string text;                  // with the prompt where it is echoed
  std::string reasoning;             // chat: what the model thought before
  std::vector<ToolCall> tool_calls;  // chat
  bool cut = false;                  // the last of them is not whole
  // With those of the prompt where it is echoed; one that is not a number is
  // not known.
  std::vector<v1::TokenLogprobs> logprobs;
  bool has_logprobs = false;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  TextOffset text_offset;  // completions
};

// The whole answer.
std::string WholeBody(const AnswerHead& head,
                      const std::vector<Choice>& choices,
                      const AnswerUsage& usage);

class ChunkWriter final {
 public:
  // `usage_follows`: every chunk says "usage": null, as OpenAI's do when the
  // client asked for the usage.
  ChunkWriter(const AnswerHead& head, bool usage_follows);

  // Each appends one event ("data: ...\n\n") to `out`.
  //
  // Chat: who speaks.
  void Role(int index, std::string* out) const;
  // New text and its log-probabilities, as Choice.logprobs. `offset` as
  // Choice.text_offset, moved on.
  void Text(
      int index, absl::string_view text,
      const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* logprobs,
      TextOffset* offset, std::string* out) const;
  // Chat: the same, of what the model thinks before it answers.
  void Reasoning(
      int index, absl::string_view text,
      const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* logprobs,
      std::string* out) const;
  // Chat: the model calls a function; `call` counts the calls of the answer.
  void ToolCallBegun(int index, size_t call, absl::string_view id,
                     absl::string_view name, std::string* out) const;
  // More of its arguments.
  void ToolCallArguments(int index, size_t call, absl::string_view text,
                         std::string* out) const;
  // `called`: there were calls, and they are whole.
  void Finish(int index, v1::FinishReason reason, bool called,
              std::string* out) const;
  void Usage(const AnswerUsage& usage, std::string* out) const;
  // An error of a stream that has begun: `error` is ErrorJson's.
  static void Error(absl::string_view error, std::string* out);
  static void Done(std::string* out);

 private:
  const bool chat_;
  const Tokenizer* const tokenizer_;
  std::string prefix_;  // up to the choice's index
  std::string suffix_;  // after the choice
  std::string usage_prefix_;
};

// The array of tokens with their log-probabilities, as conversations have it.
void AppendTokenList(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs,
    std::string* out);

// "length", "tool_calls" or "stop".
const char* FinishName(v1::FinishReason reason, bool called);

}  // namespace baton::router::http
