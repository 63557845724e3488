// From what a client sent to a RequestSpec that the cluster can run, or to an
// error that names the field. Pure; called on gRPC's threads.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "baton/v1/inference.pb.h"
#include "router/served_model.h"
#include "scheduling/request.h"

namespace baton::router {

struct RequestLimits {
  // Most tokens of one sequence: the model's, or less where the workers' pools
  // are smaller.
  int32_t max_context = 0;
  // The operator's cap on output tokens; 0: none.
  int32_t max_output_tokens = 0;
};

// `draw` gives a random number each time: for the id and the seed of a request
// that has none.
//
// InvalidArgument (the message starts with the field's name), or NotFound for
// another model. max_tokens is cut to the room that the context leaves.
absl::StatusOr<scheduling::RequestSpec> MakeRequestSpec(
    const v1::GenerateRequest& request, const ServedModel& model,
    const RequestLimits& limits, absl::FunctionRef<uint64_t()> draw);

}  // namespace baton::router
