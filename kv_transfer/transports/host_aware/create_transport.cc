#include "kv_transfer/transports/host_aware/create_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/host_aware/host_aware_transport.h"
#include "kv_transfer/transports/local/local_transport.h"
#include "kv_transfer/transports/nccl/nccl_transport.h"
#include "kv_transfer/transports/socket_address.h"
#include "kv_transfer/transports/tcp/tcp_transport.h"

namespace baton::kv_transfer {
namespace {

LocalOptions LocalFrom(const UcxOptions& ucx) {
  LocalOptions local;
  local.listen = ucx.listen;
  local.host =
      ucx.advertise_host.empty() ? ucx.listen_host : ucx.advertise_host;
  local.port = ucx.port;
  local.connect_timeout = ucx.connect_timeout;
  local.tick_interval = ucx.tick_interval;
  local.max_peers = ucx.max_peers;
  local.max_sends_outstanding = ucx.max_sends_outstanding;
  return local;
}

TcpOptions TcpFrom(const UcxOptions& ucx, const TcpTls& tls) {
  TcpOptions tcp;
  tcp.listen = ucx.listen;
  tcp.listen_host = ucx.listen_host;
  tcp.port = ucx.port;
  tcp.advertise_host = ucx.advertise_host;
  tcp.connect_timeout = ucx.connect_timeout;
  tcp.tick_interval = ucx.tick_interval;
  tcp.max_peers = ucx.max_peers;
  tcp.max_sends_in_flight = ucx.max_sends_in_flight;
  tcp.max_sends_outstanding = ucx.max_sends_outstanding;
  tcp.tls = tls;
  return tcp;
}

// TCP and UCX: who listens has one port for both, which is TCP's; who connects
// prefers UCX only where it is more than TCP by another way. TCP alone where
// all is to be encrypted.
absl::StatusOr<std::unique_ptr<Transport>> CreateRemote(UcxOptions options,
                                                        const TcpTls& tls) {
  TcpOptions tcp_options = TcpFrom(options, tls);
  if (tls.is_required()) return CreateTcpTransport(tcp_options);
  options.own_port = false;
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<UcxTransport> ucx,
                         CreateUcxTransport(options));
  tcp_options.on_stranger = [to = ucx.get()](ScopedFd socket,
                                             std::string said) {
    to->Admit(std::move(socket), std::move(said));
  };
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Transport> tcp,
                         CreateTcpTransport(tcp_options));
  if (ucx->properties().name == "ucx/tcp") {
    return MakeFallbackTransport(std::move(tcp), std::move(ucx),
                                 Silence::kOfBoth);
  }
  // Its own port, or its devices, may be what leads nowhere.
  return MakeFallbackTransport(std::move(ucx), std::move(tcp),
                               Silence::kOfTheFirst);
}

absl::StatusOr<std::unique_ptr<Transport>> CreateOverNccl(
    const UcxOptions& options, const MakeCommunicators& make_communicators) {
  if (!make_communicators) {
    return absl::InvalidArgumentError("transport \"nccl\": no communicators");
  }
  absl::StatusOr<std::unique_ptr<Communicators>> communicators =
      make_communicators();
  if (!communicators.ok()) {
    return absl::Status(
        communicators.status().code(),
        absl::StrCat("transport \"nccl\": ", communicators.status().message()));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Transport> control,
                         CreateTcpTransport(TcpFrom(options, {})));
  NcclOptions nccl;
  nccl.tick_interval = options.tick_interval;
  nccl.max_sends_outstanding = options.max_sends_outstanding;
  return CreateNcclTransport(nccl, std::move(control),
                             *std::move(communicators));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(
    const std::string& kind, const UcxOptions& options,
    const MakeCommunicators& make_communicators, const TcpTls& tls) {
  LocalOptions local_options = LocalFrom(options);
  if (options.memory == UcxMemory::kCuda && kind != "ucx") {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport \"", kind, "\" is not UCX's, which memory of CUDA needs"));
  }
  if (tls.is_required() && (kind == "ucx" || kind == "nccl")) {
    return absl::InvalidArgumentError(
        absl::StrCat("transport \"", kind, "\" does not encrypt"));
  }
  if (kind == "local") return CreateLocalTransport(local_options);
  if (kind == "tcp") return CreateTcpTransport(TcpFrom(options, tls));
  if (kind == "ucx") return CreateUcxTransport(options);
  if (kind == "nccl") return CreateOverNccl(options, make_communicators);
  if (kind != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport \"", kind, "\" is none of auto, local, tcp, ucx and nccl"));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Transport> remote,
                         CreateRemote(options, tls));
  if (options.listen) {
    // The port that was found is part of the name.
    BATON_ASSIGN_OR_RETURN(const SocketAddress address,
                           ParseSocketAddress(remote->properties().address));
    local_options.port = PortOf(address.storage);
  }
  absl::StatusOr<std::unique_ptr<Transport>> local =
      CreateLocalTransport(local_options);
  if (!local.ok()) {
    LOG(WARNING) << "kv_transfer: peers on this host are connected by "
                 << remote->properties().name
                 << " too: " << local.status().message();
    return remote;
  }
  return MakeHostAwareTransport(*std::move(local), std::move(remote));
}

}  // namespace baton::kv_transfer
