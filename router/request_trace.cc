#include "router/request_trace.h"

#include <algorithm>

namespace baton::router {

void RequestTrace::AddPromptReport(uint32_t index,
                                   const v1::PromptReport& report) {
  if (index == 0 && !prompt.has_value()) prompt = report;
}

void RequestTrace::AddOutcome(bool by_decode, const v1::Outcome& outcome) {
  (by_decode ? decode_outcome : prefill_outcome) = outcome;
}

absl::Duration TimePerOutputToken(const RequestTrace& trace,
                                  int32_t output_tokens) {
  if (output_tokens < 2 || !trace.has_first_event()) {
    return absl::ZeroDuration();
  }
  return (trace.last_event_at - trace.first_event_at) / (output_tokens - 1);
}

v1::Timing MakeTiming(const RequestTrace& trace, absl::Time end,
                      int32_t retries) {
  v1::Timing timing;
  timing.set_e2e_seconds(absl::ToDoubleSeconds(end - trace.received_at));
  timing.set_retries(static_cast<uint32_t>(retries));
  timing.set_prefill_worker(trace.prefill_worker);
  timing.set_decode_worker(trace.decode_worker);
  if (trace.has_first_event()) {
    const double ttft =
        absl::ToDoubleSeconds(trace.first_event_at - trace.received_at);
    const double route_queue =
        absl::ToDoubleSeconds(trace.first_token_sent_at - trace.received_at);
    // The workers measure with their own clocks: what they report is cut to
    // what there was.
    double left = std::max(0.0, ttft - route_queue);
    double prefill_queue = 0;
    double prefill = 0;
    if (trace.prompt.has_value()) {
      prefill_queue = std::clamp(trace.prompt->queue_seconds(), 0.0, left);
      left -= prefill_queue;
      prefill = std::clamp(trace.prompt->prefill_seconds(), 0.0, left);
      left -= prefill;
    }
    timing.set_ttft_seconds(ttft);
    timing.set_route_queue_seconds(route_queue);
    timing.set_prefill_queue_seconds(prefill_queue);
    timing.set_prefill_seconds(prefill);
    timing.set_first_token_return_seconds(left);
  }
  if (trace.prefill_outcome.has_value()) {
    const v1::Outcome& outcome = *trace.prefill_outcome;
    timing.set_kv_transfer_exposed_seconds(
        outcome.kv_transfer_exposed_seconds());
    timing.set_kv_transfer_seconds(outcome.kv_transfer_seconds());
    timing.set_kv_transfer_bytes(outcome.kv_transfer_bytes());
  }
  if (trace.decode_outcome.has_value()) {
    const v1::Outcome& outcome = *trace.decode_outcome;
    timing.set_decode_queue_seconds(outcome.decode_queue_seconds());
    timing.set_first_step_seconds(outcome.first_step_seconds());
    if (timing.kv_transfer_bytes() == 0) {
      timing.set_kv_transfer_seconds(outcome.kv_transfer_seconds());
      timing.set_kv_transfer_bytes(outcome.kv_transfer_bytes());
    }
  }
  return timing;
}

}  // namespace baton::router
