// How every gRPC server and channel of Baton is set up: keepalive that finds a
// dead or stuck peer within about two seconds, message bounds, health service
// and reflection, and a port that is ours alone.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::rpc {

// Largest message in either direction: a prompt of a million tokens fits.
inline constexpr int kMaxMessageBytes = 16 << 20;

// A channel for a long-lived stream to one worker: pings every second, own
// connection. Never blocks.
std::shared_ptr<grpc::Channel> MakeControlChannel(const std::string& address);

// A running server and the port that it got.
struct RunningServer {
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

// Starts a server with `services` on "host:port" (port 0 takes a free one),
// with the standard health service (serving) and server reflection.
// Unavailable when the address cannot be bound (in use, not ours), naming it.
absl::StatusOr<RunningServer> StartServer(
    const std::string& address, const std::vector<grpc::Service*>& services);

// "host:0" with the port that was taken: "host:4711".
std::string WithPort(const std::string& address, int port);

absl::Status FromGrpc(const grpc::Status& status);
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace baton::rpc
