// Writes an answer as APIs have it that know items or blocks: what the model
// thought, what it says, what it calls, one after another, as one JSON body or
// as a stream of typed events. What the events add up to is what the body says.
//
// Plain values; one call at a time.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

// How an answer ended.
struct AnswerEnd {
  v1::FinishReason reason = v1::FINISH_REASON_UNSPECIFIED;
  // The stop string that ended it; empty when another thing did.
  std::string stop;
  // The last call is not whole.
  bool cut = false;
  AnswerUsage usage;
};

class AnswerItems {
 public:
  using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

  virtual ~AnswerItems() = default;

  // Each appends events to `out`, unless it is null. The first and the last
  // ones of a stream are Begin's, and Finish's or Fail's.
  virtual void Begin(int64_t prompt_tokens, std::string* out) = 0;
  virtual void Reasoning(absl::string_view text, std::string* out) = 0;
  virtual void Text(absl::string_view text, const Logprobs& logprobs,
                    std::string* out) = 0;
  // The model calls the function `name`.
  virtual void CallBegun(absl::string_view call_id, absl::string_view name,
                         std::string* out) = 0;
  // More of that call's arguments.
  virtual void CallArguments(absl::string_view text, std::string* out) = 0;
  virtual void Finish(const AnswerEnd& end, std::string* out) = 0;
  virtual void Fail(const absl::Status& error, std::string* out) = 0;

  // All of it, once Finish was called.
  virtual std::string Body() const = 0;
};

}  // namespace baton::router::http
