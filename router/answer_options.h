// What a client wants of its answer that no worker needs to know.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace baton::router {

enum class RequestClass { kInteractive, kBatch };

// Stable lower-case name ("interactive"), for labels and logs.
inline const char* RequestClassName(RequestClass request_class) {
  return request_class == RequestClass::kBatch ? "batch" : "interactive";
}

struct AnswerOptions {
  // The answer ends before the first of these; each non-empty.
  std::vector<std::string> stop;
  // Whether log-probabilities come with each token.
  bool logprobs = false;
  // Targets; zero: none.
  absl::Duration ttft_target = absl::ZeroDuration();
  absl::Duration itl_target = absl::ZeroDuration();
  RequestClass request_class = RequestClass::kInteractive;
  // Larger goes first, in [-100, 100].
  int priority = 0;
  // The client's name for its user.
  std::string user;
  // The client's span of the W3C trace context; 0: none.
  uint64_t parent_span = 0;
};

}  // namespace baton::router
