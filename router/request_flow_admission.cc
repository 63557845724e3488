// RequestFlow: who comes in, and how they stand in line.
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "router/request_flow.h"
#include "router/request_report.h"
#include "router/request_spans.h"
#include "scheduling/waiting_line.h"

namespace baton::router {

using scheduling::WaitingLine;

void RequestFlow::Admit(std::unique_ptr<IncomingRequest> incoming,
                        absl::Time now) {
  if (draining_) {
    Reject(*incoming, absl::UnavailableError("the router is shutting down"),
           "draining", std::nullopt);
    return;
  }
  const scheduling::WaitingRequest in_line = InLine(*incoming);
  // A burst is not turned away while there is room on the workers.
  if (line_.IsTightFor(in_line, now)) PlaceWaiting(now);
  const WaitingLine::Admission admission = line_.Admit(in_line, now);
  if (admission.verdict != WaitingLine::Admission::Verdict::kJoined) {
    const bool late =
        admission.verdict == WaitingLine::Admission::Verdict::kLate;
    Reject(*incoming,
           absl::ResourceExhaustedError(absl::StrCat(
               "overloaded: ", line_.size(), " requests are waiting",
               late ? ", and the first token could not come in time" : "")),
           late ? "late" : "queue_full", admission.retry_after);
    return;
  }
  if (admission.evicted.has_value()) {
    Evict(*admission.evicted, admission.retry_after, now);
  }
  metrics_->Admitted(static_cast<int64_t>(incoming->spec.prompt.size()));
  auto record = std::make_unique<RequestRecord>(
      std::move(incoming), options_.max_attempts, *model_.tokenizer);
  if (spans_ != nullptr && RecordedTrace(record->spec).has_value()) {
    record->spans = std::make_unique<AttemptSpans>();
  }
  const RequestKey key = record->key;
  SetTimer(record->deadline, key);
  CHECK(records_.emplace(key, std::move(record)).second);
}

void RequestFlow::Reject(IncomingRequest& incoming, const absl::Status& status,
                         const std::string& reason,
                         std::optional<absl::Duration> retry_after) {
  metrics_->Rejected(reason);
  JudgeRejection(incoming.answer, metrics_);
  ReportRejection(
      {.id = incoming.spec.id,
       .traceparent = incoming.spec.traceparent,
       .parent_span = incoming.answer.parent_span,
       .tenant = incoming.admission == nullptr ? absl::string_view()
                                               : incoming.admission->name()},
      reason, status);
  if (spans_ != nullptr) {
    std::vector<tracing::Span> spans =
        MakeRejectionSpans(incoming, reason,
                           {.model = AskedModel(incoming.answer.adapter),
                            .status = status,
                            .now = clock_->Now(),
                            .wall_now = absl::Now()});
    if (!spans.empty()) spans_->Add(std::move(spans));
  }
  incoming.stream->Finish(status, retry_after);
}

void RequestFlow::Evict(RequestKey key, absl::Duration retry_after,
                        absl::Time now) {
  RequestRecord& record = *records_.at(key);
  record.retry_after = retry_after;
  metrics_->Evicted();
  Apply(record,
        record.lifecycle.Abort(absl::ResourceExhaustedError(
            absl::StrCat("overloaded: ", line_.size(),
                         " requests are waiting, and one that goes before this "
                         "took its place"))),
        now);
}

scheduling::WaitingRequest RequestFlow::InLine(
    const IncomingRequest& incoming) const {
  const auto prompt = static_cast<int32_t>(incoming.spec.prompt.size());
  scheduling::WaitingRequest request{
      .key = incoming.key,
      .request_class = incoming.answer.request_class,
      .priority = incoming.answer.priority,
      .tokens = int64_t{prompt} + incoming.spec.stop.max_output_tokens};
  if (incoming.admission != nullptr) {
    request.tenant = incoming.admission->name();
    request.weight = incoming.admission->weight();
  }
  if (incoming.answer.ttft_target > absl::ZeroDuration()) {
    request.start_by =
        scheduling::StartBy(incoming.received_at, incoming.answer.ttft_target,
                            scheduling::LeastPrefillSeconds(
                                cluster_->registry().snapshot(), prompt));
  }
  return request;
}

scheduling::WaitingRequest RequestFlow::InLine(
    const RequestRecord& record) const {
  return {.key = record.key,
          .request_class = record.answer.request_class,
          .tokens = static_cast<int64_t>(record.spec.prompt.size()) +
                    record.spec.stop.max_output_tokens};
}

}  // namespace baton::router
