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

}  // namespace baton::router
