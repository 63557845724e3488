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

// What a decode worker's steps may take with this request beside what runs
// there (PlacementRequest::batch_itl_seconds): its target, but the operator's
// where that is longer. It holds up others no longer than a second, or 30 where
// it is the operator's. `targets` are the operator's.
double BatchItlOf(const RequestRecord& record, const ClassTargets& targets,
                  absl::Time now);

}  // namespace baton::router
