// What a client wants of its answer besides the tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "scheduling/request.h"

namespace baton::router {

using scheduling::RequestClass;
using scheduling::RequestClassName;

// Zero: none.
struct LatencyTargets {
  absl::Duration ttft = absl::ZeroDuration();
  absl::Duration itl = absl::ZeroDuration();
};

// The operator's, for requests that say nothing of theirs.
struct ClassTargets {
  LatencyTargets interactive;
  LatencyTargets batch;
};

struct AnswerOptions {
  // The answer ends before the first of these; each non-empty.
  std::vector<std::string> stop;
  // Whether log-probabilities come with each token.
  bool logprobs = false;
  // Only the prompt is wanted: what comes out behind it is nobody's.
  bool prompt_only = false;
  // Targets; zero: none.
  absl::Duration ttft_target = absl::ZeroDuration();
  absl::Duration itl_target = absl::ZeroDuration();
  RequestClass request_class = RequestClass::kInteractive;
  // Larger goes first, in [-100, 100].
  int priority = 0;
  // The client's name for its user.
  std::string user;
  // The field that says what the answer is to be (FormatName); empty: none.
  std::string format;
  // The name of the adapter that was asked for; empty: the model alone.
  std::string adapter;
  // The prompt was a conversation.
  bool chat = false;
  // The client's span of the W3C trace context; 0: none.
  uint64_t parent_span = 0;
};

}  // namespace baton::router
