// How urgent a request is, as the placement and the workers are told. Pure.
#pragma once

#include "absl/time/time.h"
#include "router/request_record.h"
#include "scheduling/request.h"

namespace baton::router {

// As things stand at `now`. What is left of the target for the first token is
// never nothing: a little when it is missed already, so that sooner is still
// better. 0 when there is no target, or when the client has the first token.
scheduling::Urgency UrgencyOf(const RequestRecord& record, absl::Time now);

// What placement is asked to keep of the target for the first token
// (PlacementRequest::ttft_target_seconds): 0 when it is missed, or the request
// is among the late ones.
double TtftToKeep(const RequestRecord& record, bool is_late, absl::Time now);

// What a decode worker's steps may take with this request beside what runs
// there (PlacementRequest::batch_itl_seconds): its target, but the operator's
// where that is longer. It holds up others no longer than a second, or 30 where
// it is the operator's; one that stands by holds up nobody, however long it
// waits. `targets` are the operator's.
double BatchItlOf(const RequestRecord& record, const ClassTargets& targets,
                  bool stands_by, absl::Time now);

}  // namespace baton::router
