#include "router/request_report.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"

namespace baton::router {

using scheduling::FinishReason;

v1::Usage MakeUsage(const RequestRecord& record) {
  v1::Usage usage;
  usage.set_prompt_tokens(static_cast<uint32_t>(record.spec.prompt.size()));
  usage.set_output_tokens(
      static_cast<uint32_t>(record.lifecycle.output().size()));
  const auto& prefill = record.trace.first_prefill_outcome;
  if (prefill.has_value()) {
    usage.set_cached_prompt_tokens(prefill->cached_tokens());
  }
  return usage;
}

void ReportEnd(const RequestRecord& record, FinishReason reason,
               const absl::Status& status, const v1::Timing& timing,
               RouterMetrics* metrics) {
  const size_t output_tokens = record.lifecycle.output().size();
  const RequestTrace& trace = record.trace;
  metrics->Finished(reason, timing, static_cast<int64_t>(output_tokens),
                    trace.last_event_at - trace.first_event_at);
  const auto ms = [](double seconds) { return seconds * 1e3; };
  const std::string stages = absl::StrFormat(
      "ttft=%.1fms (route_queue=%.1f prefill_queue=%.1f prefill=%.1f "
      "first_token_return=%.1f) e2e=%.1fms kv_transfer=%.1fms exposed=%.1f "
      "bytes=%d decode_queue=%.1f first_step=%.1f",
      ms(timing.ttft_seconds()), ms(timing.route_queue_seconds()),
      ms(timing.prefill_queue_seconds()), ms(timing.prefill_seconds()),
      ms(timing.first_token_return_seconds()), ms(timing.e2e_seconds()),
      ms(timing.kv_transfer_seconds()),
      ms(timing.kv_transfer_exposed_seconds()), timing.kv_transfer_bytes(),
      ms(timing.decode_queue_seconds()), ms(timing.first_step_seconds()));
  LOG(INFO) << "request " << record.spec.id << " " << FinishReasonName(reason)
            << (status.ok() ? "" : absl::StrCat(" (", status.message(), ")"))
            << " prompt=" << record.spec.prompt.size()
            << " output=" << output_tokens << " " << stages << " prefill="
            << (trace.prefill_worker.empty() ? "-" : trace.prefill_worker)
            << " decode="
            << (trace.decode_worker.empty() ? "-" : trace.decode_worker)
            << " retries=" << timing.retries();
}

}  // namespace baton::router
