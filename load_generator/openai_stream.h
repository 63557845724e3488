// The OpenAI API from the client's side: what is sent, and what the events of
// a streamed answer say. Pure; any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "load_generator/target.h"

namespace baton::load_generator {

// The body of POST /v1/completions, streamed and with usage.
std::string CompletionBody(const TargetRequest& request,
                           const std::string& model);

// Reads the events of one answer.
class OpenAiStream final {
 public:
  // Whether the event brought output.
  bool Take(absl::string_view data);

  // What is known when the answer's bytes are at their end.
  TargetEnd End() const;

 private:
  TargetEnd end_;
  bool done_ = false;  // "[DONE]" came
};

// What an answer without a stream means: a status that is not 200, and its
// body.
TargetEnd EndOfError(int http_status, absl::string_view body);

}  // namespace baton::load_generator
