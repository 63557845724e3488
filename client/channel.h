// How the client library reaches a router: credentials from PEM files, the
// settings of the connection, and waiting until it stands. Private to client/.
// Pure but for reading the files; any thread.
#pragma once

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"

namespace baton::client {

// Never blocks on the network. InvalidArgument or NotFound, naming the field.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(
    const ClientOptions& options);

// Unavailable when there is no connection after `timeout`, or trying failed.
absl::Status AwaitConnected(grpc::Channel& channel, absl::Duration timeout);

}  // namespace baton::client
