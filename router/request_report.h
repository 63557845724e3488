// What is said of a request when it ends: usage and timing for the client, a
// line for the log (never prompt or answer), and numbers for the metrics.
// docs/logs.md has the fields of the line.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/request_record.h"
#include "router/router_metrics.h"
#include "scheduling/request.h"

namespace baton::router {

v1::Usage MakeUsage(const RequestRecord& record);

// The router's loop thread.
void ReportEnd(const RequestRecord& record, const std::string& model,
               scheduling::FinishReason reason, const absl::Status& status,
               const v1::Timing& timing, RouterMetrics* metrics);

// An attempt that is over although the request goes on; `cause` as in the
// metric baton_prefill_recompute_total. The router's loop thread.
void ReportRetry(const RequestRecord& record, absl::string_view cause,
                 absl::string_view why);

// A request that did not come in. What is not known is empty.
struct RejectedRequest {
  absl::string_view id;
  absl::string_view traceparent;
  uint64_t parent_span = 0;
  absl::string_view tenant;
  // What is wrong with it.
  absl::string_view field;
};

// Counts it as one that missed its targets, if it had any. Any thread.
void JudgeRejection(const AnswerOptions& answer, RouterMetrics* metrics);

// Logs a line, but not more than a bound in a second: whoever can reach the
// port can have requests rejected. `reason` is as in the metric
// baton_admission_total. Any thread.
void ReportRejection(const RejectedRequest& request, absl::string_view reason,
                     const absl::Status& status);

}  // namespace baton::router
