// RequestFlow: what it keeps and tells of where requests went.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "router/prefix_metrics.h"
#include "router/request_explanation.h"
#include "router/request_flow.h"
#include "router/request_spans.h"

namespace baton::router {

void RequestFlow::LogPlacement(RequestRecord& record,
                               const scheduling::PlacementVerdict& verdict,
                               const scheduling::PlacementRequest& request,
                               absl::Time now) {
  const WorkerRegistry& registry = cluster_->registry();
  PlacementLog::Entry entry;
  entry.at = now;
  entry.verdict = verdict;
  entry.prefill_tokens = request.prefill_tokens;
  entry.cached_tokens = CachedTokens(request, PrefilledBy(verdict));
  entry.total_tokens = request.total_tokens;
  entry.waited_for = std::exchange(record.waits_for, std::nullopt);
  // Who was never first in the line waited for who was.
  if (!entry.waited_for.has_value() && blocked_at_ >= record.waiting_since) {
    entry.waited_for = blocked_by_;
  }
  entry.candidates = policy_.Weigh(registry.snapshot(), request, verdict,
                                   PlacementLog::kMaxCandidates);
  names_.Learn(entry.candidates, registry);
  record.placements.Add(std::move(entry));
}

void RequestFlow::TraceAttempt(RequestRecord& record,
                               const scheduling::PlacementVerdict& verdict) {
  if (record.spans == nullptr) return;
  AttemptSpans::Attempt attempt{
      .id = *record.attempt,
      .waiting_since = record.waiting_since,
      .sent_at = record.trace.sent_at,
      .prefill_worker = record.trace.prefill_worker,
      .decode_worker = record.trace.decode_worker,
      .decision = scheduling::PlacementKindName(verdict.kind),
      .reason = scheduling::PlacementReasonName(verdict.reason)};
  const auto& waited_for = record.placements.entries().back().waited_for;
  if (waited_for.has_value()) {
    attempt.waited_for = scheduling::PlacementReasonName(*waited_for);
  }
  record.spans->Begin(std::move(attempt));
}

void RequestFlow::Trace(const RequestRecord& record,
                        const scheduling::Finish& end, const v1::Timing& timing,
                        absl::Time now) {
  if (record.spans == nullptr) return;
  spans_->Add(MakeSpans(record, {.model = AskedModel(record.answer.adapter),
                                 .reason = end.reason,
                                 .status = end.status,
                                 .timing = timing,
                                 .now = now,
                                 .wall_now = absl::Now()}));
}

std::string RequestFlow::WaitsFor(const RequestRecord& record,
                                  absl::Time now) const {
  if (now < record.place_at) return "a pause: workers refused it often";
  if (record.waits_for.has_value()) {
    return scheduling::PlacementReasonName(*record.waits_for);
  }
  const int32_t before = line_.NumBefore(record.key);
  if (before == 0) return "";
  std::string text = absl::StrCat(before, " before it");
  if (blocked_at_ >= record.waiting_since) {
    absl::StrAppend(&text, "; the first waits for ",
                    scheduling::PlacementReasonName(blocked_by_));
  }
  return text;
}

absl::StatusOr<v1::ExplainRequestResponse> RequestFlow::Explain(
    const std::string& id, absl::Time now) const {
  const EndedRequest* const ended = history_.Find(id);
  // People ask, not programs: looking at each request is quick enough.
  const auto it = std::find_if(
      records_.rbegin(), records_.rend(),
      [&](const auto& entry) { return entry.second->spec.id == id; });
  const bool here =
      it != records_.rend() &&
      (ended == nullptr || it->second->trace.received_at >= ended->received_at);
  if (!here && ended == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("this router knows no request \"", id,
                     "\": it never came, or ended too long ago"));
  }
  v1::ExplainRequestResponse response =
      here ? router::Explain(*it->second, names_, now, absl::Now())
           : router::Explain(*ended, names_, now, absl::Now());
  response.set_model(
      AskedModel(here ? it->second->answer.adapter : ended->adapter));
  if (here && it->second->lifecycle.state() ==
                  scheduling::RequestLifecycle::State::kQueued) {
    response.set_waits_for(WaitsFor(*it->second, now));
  }
  return response;
}

}  // namespace baton::router
