#include "worker/attempt_report.h"

#include "absl/strings/str_cat.h"
#include "common/log_fields.h"

namespace baton::worker {
namespace {

void AddSeconds(absl::string_view name, double seconds, LogFields* fields) {
  if (seconds > 0) fields->Millis(name, seconds);
}

void AddSpans(absl::string_view part, const AttemptName& name, bool transfer,
              LogFields* fields) {
  if (!name.parent.has_value()) return;
  const TraceContext& parent = *name.parent;
  fields->Text("trace", TraceIdHex(parent));
  fields->Text("span", SpanIdHex(PartSpan(parent, part, name.attempt).span));
  fields->Text("parent", SpanIdHex(parent.span));
  if (!transfer) return;
  fields->Text("transfer_span",
               SpanIdHex(PartSpan(parent, "transfer", name.attempt).span));
}

}  // namespace

kv_transfer::TransferOwner AttemptName::Owner() const {
  return {.request = request_id,
          .trace_id = parent.has_value() ? TraceIdHex(*parent) : ""};
}

AttemptName MakeAttemptName(const v1::SequenceSpec& spec, uint64_t attempt) {
  return {.request_id = spec.request_id(),
          .attempt = attempt,
          .parent = ParseTraceparent(spec.traceparent())};
}

void LogAttemptEnd(absl::string_view part, const AttemptName& name,
                   const AttemptEnd& end) {
  const v1::Outcome& outcome = end.outcome;
  const bool preempted = outcome.failure() == v1::FAILURE_KIND_PREEMPTED;
  const bool failed = !outcome.ok() && !preempted && !end.error.empty();
  const google::LogSeverity severity =
      failed ? google::GLOG_WARNING : google::GLOG_INFO;
  if (!LogsAt(severity)) return;
  LogFields fields;
  fields.Text("request", name.request_id);
  AddSpans(part, name, outcome.kv_transfer_bytes() > 0, &fields);
  fields.Number("attempt", static_cast<int64_t>(name.attempt));
  fields.Text("outcome", outcome.ok() ? "ok"
                         : preempted  ? "preempted"
                         : failed     ? "failed"
                                      : "cancelled");
  fields.Text("error", end.error);
  fields.Number("tokens", end.tokens);
  fields.Number("cached_tokens", outcome.cached_tokens());
  fields.Number("output_tokens", end.sampled);
  AddSeconds("queue_ms", outcome.queue_seconds(), &fields);
  AddSeconds("prefill_ms", outcome.prefill_seconds(), &fields);
  if (outcome.kv_transfer_bytes() > 0) {
    AddSeconds("kv_transfer_ms", outcome.kv_transfer_seconds(), &fields);
    AddSeconds("kv_transfer_exposed_ms", outcome.kv_transfer_exposed_seconds(),
               &fields);
    fields.Number("kv_transfer_bytes",
                  static_cast<int64_t>(outcome.kv_transfer_bytes()));
  }
  if (end.landed.has_value()) {
    fields.Millis("landed_ms", absl::ToDoubleSeconds(*end.landed));
  }
  AddSeconds("decode_queue_ms", outcome.decode_queue_seconds(), &fields);
  AddSeconds("first_step_ms", outcome.first_step_seconds(), &fields);
  fields.Millis("total_ms", absl::ToDoubleSeconds(end.total));
  LogEvent(severity, absl::StrCat(part, " ended"), fields);
}

}  // namespace baton::worker
