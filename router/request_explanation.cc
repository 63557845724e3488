#include "router/request_explanation.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/trace_context.h"
#include "common/utf8.h"
#include "router/request_report.h"
#include "router/worker_messages.h"

namespace baton::router {
namespace {

using scheduling::RequestLifecycle;

// An error longer than this is cut.
constexpr size_t kMaxErrorBytes = 1024;

const char* LifecycleStateName(RequestLifecycle::State state) {
  switch (state) {
    case RequestLifecycle::State::kQueued:
      return "waiting";
    case RequestLifecycle::State::kRunning:
      return "running";
    case RequestLifecycle::State::kSettling:
      return "settling";
    case RequestLifecycle::State::kDone:
      return "done";
  }
  LOG(FATAL) << "State " << static_cast<int>(state);
}

std::string TraceIdIn(const std::string& traceparent) {
  const auto context = ParseTraceparent(traceparent);
  return context.has_value() ? TraceIdHex(*context) : "";
}

uint32_t WholeMs(absl::Duration duration) {
  return static_cast<uint32_t>(absl::ToInt64Milliseconds(duration));
}

// What a request that runs and one that ended have in common.
struct Facts {
  const std::string& id;
  absl::Time received_at;
  const PlacementLog& placements;
  absl::Duration ttft_target;
  absl::Duration itl_target;
  RequestClass request_class;
};

v1::ExplainRequestResponse DescribeFacts(const Facts& facts,
                                         const WorkerNames& names,
                                         absl::Time now, absl::Time wall_now) {
  v1::ExplainRequestResponse response;
  response.set_request_id(facts.id);
  response.set_received_unix_seconds(absl::ToDoubleSeconds(
      wall_now - (now - facts.received_at) - absl::UnixEpoch()));
  facts.placements.Describe(facts.received_at, names, &response);
  if (facts.ttft_target > absl::ZeroDuration() ||
      facts.itl_target > absl::ZeroDuration()) {
    response.mutable_target()->set_ttft_ms(WholeMs(facts.ttft_target));
    response.mutable_target()->set_itl_ms(WholeMs(facts.itl_target));
  }
  response.set_request_class(facts.request_class == RequestClass::kBatch
                                 ? v1::REQUEST_CLASS_BATCH
                                 : v1::REQUEST_CLASS_INTERACTIVE);
  return response;
}

}  // namespace

v1::ExplainRequestResponse Explain(const RequestRecord& record,
                                   const WorkerNames& names, absl::Time now,
                                   absl::Time wall_now) {
  v1::ExplainRequestResponse response =
      DescribeFacts({.id = record.spec.id,
                     .received_at = record.trace.received_at,
                     .placements = record.placements,
                     .ttft_target = record.answer.ttft_target,
                     .itl_target = record.answer.itl_target,
                     .request_class = record.answer.request_class},
                    names, now, wall_now);
  response.set_trace_id(TraceIdIn(record.spec.traceparent));
  response.set_state(LifecycleStateName(record.lifecycle.state()));
  *response.mutable_usage() = MakeUsage(record);
  *response.mutable_timing() =
      MakeTiming(record.trace, now, record.lifecycle.retries());
  return response;
}

v1::ExplainRequestResponse Explain(const EndedRequest& request,
                                   const WorkerNames& names, absl::Time now,
                                   absl::Time wall_now) {
  v1::ExplainRequestResponse response =
      DescribeFacts({.id = request.id,
                     .received_at = request.received_at,
                     .placements = request.placements,
                     .ttft_target = request.ttft_target,
                     .itl_target = request.itl_target,
                     .request_class = request.request_class},
                    names, now, wall_now);
  response.set_trace_id(request.trace_id);
  response.set_state(LifecycleStateName(RequestLifecycle::State::kDone));
  *response.mutable_usage() = request.usage;
  *response.mutable_timing() = request.timing;
  response.set_finish_reason(ToWire(request.reason));
  response.set_error(request.error);
  return response;
}

EndedRequest MakeEnded(RequestRecord& record, scheduling::FinishReason reason,
                       const absl::Status& status, const v1::Timing& timing) {
  EndedRequest ended;
  ended.id = record.spec.id;
  ended.trace_id = TraceIdIn(record.spec.traceparent);
  ended.received_at = record.trace.received_at;
  ended.adapter = record.answer.adapter;
  ended.usage = MakeUsage(record);
  ended.timing = timing;
  ended.reason = reason;
  if (!status.ok()) {
    // Whole characters: the wire takes nothing else.
    ended.error = CutUtf8(absl::StrCat(absl::StatusCodeToString(status.code()),
                                       ": ", status.message()),
                          kMaxErrorBytes);
    if (record.attempt.has_value()) record.placements.Ended(ended.error);
  }
  ended.placements = std::move(record.placements);
  ended.ttft_target = record.answer.ttft_target;
  ended.itl_target = record.answer.itl_target;
  ended.request_class = record.answer.request_class;
  return ended;
}

}  // namespace baton::router
