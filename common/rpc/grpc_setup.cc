#include "common/rpc/grpc_setup.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "common/rpc/grpc_credentials.h"
#include "common/utf8.h"

namespace baton::rpc {
namespace {

// Long after heartbeats and leases have told whether the other one is there:
// these end what is left of a connection.
constexpr int kKeepaliveTimeMs = 5000;
constexpr int kKeepaliveTimeoutMs = 10'000;
constexpr int kConnectTimeoutMs = 5000;
// Of clients: streams that nobody reads end by other bounds long before.
constexpr int kClientKeepaliveTimeMs = 30'000;
constexpr int kClientKeepaliveTimeoutMs = 20'000;

}  // namespace

std::shared_ptr<grpc::Channel> MakeControlChannel(
    const std::string& address,
    std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // How long one attempt to connect may take: what is on a busy machine, or far
  // away, is slow but there. A refused attempt ends at once.
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectTimeoutMs);
  // A worker that comes back is found soon.
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (credentials == nullptr) credentials = grpc::InsecureChannelCredentials();
  return grpc::CreateCustomChannel(address, credentials, args);
}

absl::StatusOr<RunningServer> StartServer(
    const std::string& address, const std::vector<grpc::Service*>& services,
    std::shared_ptr<tls::PemFiles> tls, Callers callers) {
  static std::once_flag plugins;
  std::call_once(plugins, [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  // Without this, Linux lets two servers share a port, and half of the
  // connections go to the wrong one.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  const bool clients = callers == Callers::kClients;
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIME_MS,
      clients ? kClientKeepaliveTimeMs : kKeepaliveTimeMs);
  builder.AddChannelArgument(
      GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
      clients ? kClientKeepaliveTimeoutMs : kKeepaliveTimeoutMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
      kKeepaliveTimeMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  RunningServer running;
  running.credentials = tls == nullptr ? grpc::InsecureServerCredentials()
                                       : MakeServerCredentials(tls);
  builder.AddListeningPort(address, running.credentials, &running.port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  running.server = builder.BuildAndStart();
  if (running.server == nullptr || running.port == 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot listen for gRPC on ", address,
                     ": the address is in use or not one of this machine's"));
  }
  LOG_IF(WARNING, tls == nullptr && !IsLoopback(address))
      << "gRPC on " << address
      << " is plain text and can be reached from other machines";
  return running;
}

bool IsLoopback(absl::string_view address) {
  absl::string_view host = address.substr(0, address.rfind(':'));
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  return host == "localhost" || host == "::1" ||
         (absl::StartsWith(host, "127.") &&
          host.find_first_not_of("0123456789.") == absl::string_view::npos);
}

std::string WithPort(const std::string& address, int port) {
  return absl::StrCat(address.substr(0, address.rfind(':')), ":", port);
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      status.error_message());
}

grpc::Status ToGrpc(const absl::Status& status) {
  // It travels in trailers, escaped; clients refuse those beyond 8 KiB.
  constexpr size_t kMaxMessageBytes = 2000;
  return grpc::Status(static_cast<grpc::StatusCode>(status.raw_code()),
                      CutUtf8(status.message(), kMaxMessageBytes));
}

}  // namespace baton::rpc
