// How every gRPC server and channel of Baton is set up: keepalive that ends dead
// connections, message bounds, health service and reflection, a port that is ours
// alone, and TLS where it is asked for
// (common/rpc/grpc_credentials.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tls/pem_files.h"

namespace baton::rpc {

// Largest message in either direction: a prompt of a million tokens fits.
inline constexpr int kMaxMessageBytes = 16 << 20;

// A channel for a long-lived stream to one worker: a connection of its own, and
// pings every 5 s, which must be answered within 10 s (whether the worker is
// alive, heartbeats tell much sooner: router/cluster.h); without credentials in
// plain text. Never blocks.
std::shared_ptr<grpc::Channel> MakeControlChannel(
    const std::string& address,
    std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

// A running server and the port that it got.
struct RunningServer {
  RunningServer() = default;
  RunningServer(RunningServer&&) = default;
  RunningServer& operator=(RunningServer&& other) noexcept {
    server = std::move(other.server);
    credentials = std::move(other.credentials);
    port = other.port;
    return *this;
  }

  // Outlives the server.
  std::shared_ptr<grpc::ServerCredentials> credentials;
  std::unique_ptr<grpc::Server> server;
  int port = 0;
};

// Who connects to a server: how soon one that does not answer pings is given up.
enum class Callers {
  // Members of the cluster: pings every 5 s, 10 s to answer.
  kCluster,
  // Clients: every 30 s, 20 s to answer. gRPC's synchronous clients answer only
  // while they make a call, and none of them may lose its connection between
  // two calls of a working session.
  kClients,
};

// Starts a server with `services` on "host:port" (port 0 takes a free one),
// with the standard health service (serving) and server reflection; without
// `tls` in plain text, which a warning names when others than this machine can
// reach it. Unavailable when the address cannot be bound (in use, not ours),
// naming it.
absl::StatusOr<RunningServer> StartServer(
    const std::string& address, const std::vector<grpc::Service*>& services,
    std::shared_ptr<tls::PemFiles> tls = nullptr,
    Callers callers = Callers::kCluster);

// Whether "host:port" is reached from this machine only. False when in doubt.
bool IsLoopback(absl::string_view address);

// "host:0" with the port that was taken: "host:4711".
std::string WithPort(const std::string& address, int port);

absl::Status FromGrpc(const grpc::Status& status);
// A very long message is cut.
grpc::Status ToGrpc(const absl::Status& status);

}  // namespace baton::rpc
