// Writes answers as the OpenAI API has them: one JSON body, or the chunks of a
// stream of server-sent events. What the concatenated chunks say is what the
// body says.
//
// Plain values; one call at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"

namespace baton::router::http {

// What all chunks and the body of one answer share.
struct AnswerHead {
  bool chat = false;
  std::string id;  // "chatcmpl-..."
  int64_t created_unix_seconds = 0;
  std::string model;
};

// The usage of several answers: prompts count once each.
struct AnswerUsage {
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_prompt_tokens = 0;
};

// One of the answers of a call, as far as it has come.
struct Choice {
  std::string text;  // with the prompt where it is echoed
  std::vector<v1::TokenLogprobs> logprobs;
  bool has_logprobs = false;
  v1::FinishReason finish_reason = v1::FINISH_REASON_UNSPECIFIED;
  // Where the next token's text begins, in characters (completions).
  int64_t text_offset = 0;
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
  // New text and its log-probabilities. `offset` as Choice.text_offset, moved
  // on.
  void Text(
      int index, absl::string_view text,
      const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* logprobs,
      int64_t* offset, std::string* out) const;
  void Finish(int index, v1::FinishReason reason, std::string* out) const;
  void Usage(const AnswerUsage& usage, std::string* out) const;
  // An error of a stream that has begun: `error` is ErrorJson's.
  static void Error(absl::string_view error, std::string* out);
  static void Done(std::string* out);

 private:
  const bool chat_;
  std::string prefix_;  // up to the choice's index
  std::string suffix_;  // after the choice
  std::string usage_prefix_;
};

// As JavaScript's and Python's clients index text: code points.
int64_t CountCharacters(absl::string_view text);

// "stop" or "length".
const char* FinishName(v1::FinishReason reason);

}  // namespace baton::router::http
