// Where the time of one request went: the stamps that the router takes and the
// durations that workers report, put together into the Timing that the client
// gets, the metrics and the log line.
//
// TTFT is split so that the stages add up to it exactly:
//   route_queue         arrival -> sent to the workers (the attempt that gave
//                       the first token; earlier attempts are in it)
//   prefill_queue       as the worker reports it
//   prefill             as the worker reports it
//   first_token_return  the rest: the network both ways and the router's loop
//
// Plain values; used by the router's loop thread only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "baton/v1/worker.pb.h"
#include "scheduling/request_lifecycle.h"

namespace baton::router {

struct RequestTrace {
  absl::Time received_at;
  // The attempt under way, or the last one.
  absl::Time sent_at;
  // From there to the first token, as placement expected; zero: it did not.
  absl::Duration predicted_ttft;
  // Per output token after the first, likewise.
  absl::Duration predicted_tpot;
  std::string prefill_worker;  // empty: local prefill
  std::string decode_worker;
  // The attempt that gave output token 0: when it was sent, and what computing
  // the prompt cost it.
  absl::Time first_token_sent_at;
  std::optional<v1::PromptReport> prompt;
  // Tokens handed to the client's stream.
  absl::Time first_event_at;
  absl::Time last_event_at;
  // Between two of them.
  absl::Duration longest_gap;
  // Of the last attempt that reported them.
  std::optional<v1::Outcome> prefill_outcome;
  std::optional<v1::Outcome> decode_outcome;

  bool has_first_event() const { return first_event_at != absl::Time(); }

  // With output token `index`. The first one counts.
  void AddPromptReport(uint32_t index, const v1::PromptReport& report);
  // The outcome of a leg of the attempt under way.
  void AddOutcome(bool by_decode, const v1::Outcome& outcome);
};

// From the first token event to the last, shared out among `output_tokens` but
// the first; zero when there are fewer than two.
absl::Duration TimePerOutputToken(const RequestTrace& trace,
                                  int32_t output_tokens);

// What is known at `end`; stages that nobody reported are 0.
v1::Timing MakeTiming(const RequestTrace& trace, absl::Time end,
                      int32_t retries);

}  // namespace baton::router
