// A server under load, as the generator sees it: requests go in, token events
// come back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace baton::load_generator {

// What is asked. Either token ids or, where there are none, text.
struct TargetRequest {
  std::vector<uint32_t> tokens;
  std::string text;
  // Exactly so many, where the server can be told to go on past its end of
  // text.
  int32_t output_tokens = 1;
  // Until it is given up, from Send.
  absl::Duration timeout;
};

enum class OutcomeKind {
  kFinished,
  kRejected,  // turned away: 429, 503, ResourceExhausted, Unavailable
  kTimedOut,  // by us or by the server
  kFailed,    // anything else
};

// Stable lower-case name ("finished"), for reports.
const char* OutcomeName(OutcomeKind kind);

struct TargetEnd {
  OutcomeKind kind = OutcomeKind::kFailed;
  // Why it is not kFinished; cut where it is long.
  std::string error;
  // As the server counts them; 0 where it did not say.
  int32_t prompt_tokens = 0;
  int32_t cached_tokens = 0;
  int32_t output_tokens = 0;
};

// Told of one request on the target's threads, one call at a time. `now` is of
// Clock::Monotonic(), taken as early as possible.
class TargetListener {
 public:
  virtual ~TargetListener() = default;
  // New output came: one token, or several at a time.
  virtual void OnTokens(absl::Time now) = 0;
  // Once, last.
  virtual void OnEnd(absl::Time now, const TargetEnd& end) = 0;
};

class Target {
 public:
  // Ends what is still open.
  virtual ~Target() = default;
  // Any thread; does not wait.
  virtual void Send(TargetRequest request,
                    std::shared_ptr<TargetListener> listener) = 0;
};

}  // namespace baton::load_generator
