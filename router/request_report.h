// What is said of a request when it ends: usage and timing for the client, a
// line for the log (never prompt or answer), and numbers for the metrics.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/request_record.h"
#include "router/router_metrics.h"
#include "scheduling/request.h"

namespace baton::router {

v1::Usage MakeUsage(const RequestRecord& record);

void ReportEnd(const RequestRecord& record, scheduling::FinishReason reason,
               const absl::Status& status, const v1::Timing& timing,
               RouterMetrics* metrics);

}  // namespace baton::router
