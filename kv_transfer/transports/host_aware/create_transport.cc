#include "kv_transfer/transports/host_aware/create_transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/host_aware/host_aware_transport.h"
#include "kv_transfer/transports/local/local_transport.h"
#include "kv_transfer/transports/socket_address.h"

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
  local.max_sends_in_flight = ucx.max_sends_in_flight;
  local.max_sends_outstanding = ucx.max_sends_outstanding;
  return local;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Transport>> CreateTransport(
    const std::string& kind, const UcxOptions& options) {
  LocalOptions local_options = LocalFrom(options);
  if (kind == "local") return CreateLocalTransport(local_options);
  if (kind != "ucx" && kind != "auto") {
    return absl::InvalidArgumentError(absl::StrCat(
        "transport \"", kind, "\" is none of auto, local and ucx"));
  }
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Transport> ucx,
                         CreateUcxTransport(options));
  if (kind == "ucx") return ucx;
  if (options.listen) {
    // The port that UCX found is part of the name.
    BATON_ASSIGN_OR_RETURN(const SocketAddress address,
                           ParseSocketAddress(ucx->properties().address));
    local_options.port = PortOf(address.storage);
  }
  absl::StatusOr<std::unique_ptr<Transport>> local =
      CreateLocalTransport(local_options);
  if (!local.ok()) {
    LOG(WARNING) << "kv_transfer: peers on this host are connected by "
                 << ucx->properties().name
                 << " too: " << local.status().message();
    return ucx;
  }
  return MakeHostAwareTransport(*std::move(local), std::move(ucx));
}

}  // namespace baton::kv_transfer
