// What the router knows of one request, for who asks (`baton explain`): one
// that it has, or one that ended. Pure; the router's loop thread.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/placement_log.h"
#include "router/request_history.h"
#include "router/request_record.h"
#include "scheduling/request.h"

namespace baton::router {

// `now` is of the monotonic clock, as all times of a request; `wall_now` is the
// same moment for people. The caller adds the model's name.
v1::ExplainRequestResponse Explain(const RequestRecord& record,
                                   const WorkerNames& names, absl::Time now,
                                   absl::Time wall_now);
v1::ExplainRequestResponse Explain(const EndedRequest& request,
                                   const WorkerNames& names, absl::Time now,
                                   absl::Time wall_now);

// What is kept of a request that ends now. Takes the record's placements.
EndedRequest MakeEnded(RequestRecord& record, scheduling::FinishReason reason,
                       const absl::Status& status, const v1::Timing& timing);

}  // namespace baton::router
