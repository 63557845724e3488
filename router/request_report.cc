#include "router/request_report.h"

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/line_limit.h"
#include "common/log_fields.h"
#include "common/trace_context.h"

namespace baton::router {
namespace {

using scheduling::FinishReason;

// Lines about rejected requests in a second; a client can cause any number.
constexpr int kMaxRejectionLines = 50;

void AddTrace(absl::string_view traceparent, uint64_t parent,
              LogFields* fields) {
  const auto context = ParseTraceparent(traceparent);
  if (!context.has_value()) return;
  fields->Text("trace", TraceIdHex(*context));
  fields->Text("span", SpanIdHex(context->span));
  if (parent != 0) fields->Text("parent", SpanIdHex(parent));
}

void AddClient(const AnswerOptions& answer, const KeyGrant* admission,
               LogFields* fields) {
  if (admission != nullptr) fields->Text("tenant", admission->name());
  fields->Text("user", answer.user);
  fields->Text("class", RequestClassName(answer.request_class));
  if (answer.priority != 0) fields->Number("priority", answer.priority);
}

void AddError(const absl::Status& status, LogFields* fields) {
  if (status.ok()) return;
  fields->Text("code", absl::StatusCodeToString(status.code()));
  fields->Text("error", status.message());
}

void AddStages(const v1::Timing& timing, LogFields* fields) {
  if (timing.ttft_seconds() > 0) {
    fields->Millis("ttft_ms", timing.ttft_seconds());
    fields->Millis("route_queue_ms", timing.route_queue_seconds());
    fields->Millis("prefill_queue_ms", timing.prefill_queue_seconds());
    fields->Millis("prefill_ms", timing.prefill_seconds());
    fields->Millis("first_token_return_ms",
                   timing.first_token_return_seconds());
  }
  if (timing.kv_transfer_bytes() > 0) {
    fields->Millis("kv_transfer_ms", timing.kv_transfer_seconds());
    fields->Millis("kv_transfer_exposed_ms",
                   timing.kv_transfer_exposed_seconds());
    fields->Number("kv_transfer_bytes",
                   static_cast<int64_t>(timing.kv_transfer_bytes()));
  }
  if (timing.first_step_seconds() > 0) {
    fields->Millis("decode_queue_ms", timing.decode_queue_seconds());
    fields->Millis("first_step_ms", timing.first_step_seconds());
  }
  fields->Millis("e2e_ms", timing.e2e_seconds());
}

bool MetTtft(const RequestRecord& record) {
  const RequestTrace& trace = record.trace;
  return trace.has_first_event() &&
         trace.first_event_at - trace.received_at <= record.answer.ttft_target;
}

bool MetItl(const RequestRecord& record) {
  return record.trace.has_first_event() &&
         TimePerOutputToken(record.trace, record.output_tokens) <=
             record.answer.itl_target;
}

bool HasTarget(const AnswerOptions& answer) {
  return answer.ttft_target > absl::ZeroDuration() ||
         answer.itl_target > absl::ZeroDuration();
}

bool Finished(FinishReason reason) {
  return reason == FinishReason::kStop || reason == FinishReason::kLength;
}

// Counts a request that had targets. One that its client gave up tells nothing.
void JudgeTargets(const RequestRecord& record, FinishReason reason,
                  RouterMetrics* metrics) {
  const AnswerOptions& answer = record.answer;
  if (!HasTarget(answer) || reason == FinishReason::kCancelled) return;
  const bool finished = Finished(reason);
  TargetVerdict verdict;
  if (answer.ttft_target > absl::ZeroDuration()) {
    verdict.ttft = finished && MetTtft(record);
  }
  if (answer.itl_target > absl::ZeroDuration()) {
    verdict.itl = finished && MetItl(record);
  }
  metrics->TargetsJudged(answer.request_class, verdict);
}

// Gaps between token events, and whether the targets were met.
void AddLatency(const RequestRecord& record, LogFields* fields) {
  const RequestTrace& trace = record.trace;
  const absl::Duration per_token =
      TimePerOutputToken(trace, record.output_tokens);
  if (record.output_tokens > 1) {
    fields->Millis("tpot_ms", absl::ToDoubleSeconds(per_token));
    fields->Millis("longest_gap_ms", absl::ToDoubleSeconds(trace.longest_gap));
  }
  const AnswerOptions& answer = record.answer;
  if (answer.ttft_target > absl::ZeroDuration()) {
    fields->Millis("ttft_target_ms", absl::ToDoubleSeconds(answer.ttft_target));
    fields->Bool("ttft_met", MetTtft(record));
  }
  if (answer.itl_target > absl::ZeroDuration()) {
    fields->Millis("itl_target_ms", absl::ToDoubleSeconds(answer.itl_target));
    fields->Bool("itl_met", MetItl(record));
  }
}

LogFields DescribeEnd(const RequestRecord& record, const std::string& model,
                      FinishReason reason, const absl::Status& status,
                      const v1::Timing& timing) {
  LogFields fields;
  fields.Text("request", record.spec.id);
  AddTrace(record.spec.traceparent, record.answer.parent_span, &fields);
  AddClient(record.answer, record.admission.get(), &fields);
  fields.Text("model", model);
  fields.Text("outcome", FinishReasonName(reason));
  AddError(status, &fields);
  const v1::Usage usage = MakeUsage(record);
  fields.Number("prompt_tokens", usage.prompt_tokens());
  fields.Number("cached_tokens", usage.cached_prompt_tokens());
  fields.Number("output_tokens", usage.output_tokens());
  AddStages(timing, &fields);
  AddLatency(record, &fields);
  fields.Text("prefill_worker", record.trace.prefill_worker);
  fields.Text("decode_worker", record.trace.decode_worker);
  fields.Number("retries", timing.retries());
  return fields;
}

}  // namespace

v1::Usage MakeUsage(const RequestRecord& record) {
  v1::Usage usage;
  usage.set_prompt_tokens(static_cast<uint32_t>(record.spec.prompt.size()));
  usage.set_output_tokens(static_cast<uint32_t>(record.output_tokens));
  const auto& prompt = record.trace.prompt;
  if (prompt.has_value()) {
    usage.set_cached_prompt_tokens(prompt->cached_tokens());
  }
  return usage;
}

void ReportEnd(const RequestRecord& record, const std::string& model,
               FinishReason reason, const absl::Status& status,
               const v1::Timing& timing, RouterMetrics* metrics) {
  const RequestTrace& trace = record.trace;
  metrics->Finished(reason, timing, record.output_tokens,
                    trace.last_event_at - trace.first_event_at);
  JudgeTargets(record, reason, metrics);
  // Of several attempts, none was expected to give all of it.
  if (timing.retries() == 0 && Finished(reason)) {
    metrics->PredictedTpot(trace.predicted_tpot,
                           TimePerOutputToken(trace, record.output_tokens));
  }
  if (!LogsAt(google::GLOG_INFO)) return;
  LogEvent(google::GLOG_INFO, "request ended",
           DescribeEnd(record, model, reason, status, timing));
}

void ReportRetry(const RequestRecord& record, absl::string_view cause,
                 absl::string_view why) {
  LogFields fields;
  fields.Text("request", record.spec.id);
  AddTrace(record.spec.traceparent, record.answer.parent_span, &fields);
  fields.Text("cause", cause);
  fields.Text("error", why);
  fields.Number("output_tokens", record.output_tokens);
  fields.Text("prefill_worker", record.trace.prefill_worker);
  fields.Text("decode_worker", record.trace.decode_worker);
  const bool planned = cause == "preempted" || cause == "drained";
  LogEvent(planned ? google::GLOG_INFO : google::GLOG_WARNING, "attempt ended",
           fields);
}

void JudgeRejection(const AnswerOptions& answer, RouterMetrics* metrics) {
  if (!HasTarget(answer)) return;
  TargetVerdict verdict;
  if (answer.ttft_target > absl::ZeroDuration()) verdict.ttft = false;
  if (answer.itl_target > absl::ZeroDuration()) verdict.itl = false;
  metrics->TargetsJudged(answer.request_class, verdict);
}

void ReportRejection(const RejectedRequest& request, absl::string_view reason,
                     const absl::Status& status) {
  static auto* const limit = new LineLimit(kMaxRejectionLines);
  const std::optional<int64_t> left_out =
      limit->Take(Clock::Monotonic()->Now());
  if (!left_out.has_value()) return;
  LogFields fields;
  fields.Text("request", request.id);
  AddTrace(request.traceparent, request.parent_span, &fields);
  fields.Text("tenant", request.tenant);
  fields.Text("reason", reason);
  fields.Text("field", request.field);
  AddError(status, &fields);
  if (*left_out > 0) fields.Number("left_out", *left_out);
  LogEvent(google::GLOG_INFO, "request rejected", fields);
}

}  // namespace baton::router
