// A Baton router over gRPC.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/client.h"
#include "load_generator/target.h"

namespace baton::load_generator {

// Errors as client::Client::Connect.
absl::StatusOr<std::unique_ptr<Target>> CreateGrpcTarget(
    const client::ClientOptions& options);

}  // namespace baton::load_generator
