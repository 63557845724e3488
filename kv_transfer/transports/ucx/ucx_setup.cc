#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/ucx/ucx_context.h"
#include "kv_transfer/transports/ucx/ucx_loop.h"

namespace baton::kv_transfer {
namespace {

constexpr uint64_t kGoodUcxPayloadBytes = uint64_t{1} << 20;
// A device is asked for the checksums of each, which takes some tens of
// microseconds however few they are; but the larger they are, the more of them
// land in more than one run.
constexpr uint64_t kGoodDevicePayloadBytes = uint64_t{2} << 20;

}  // namespace

absl::Status UcxLoop::Open(TransportProperties* properties) {
  const std::string tls = UcxTransportList(options_);
  // UCX lists the machine's network devices and then opens them: one that went
  // away in between, as those of containers do, is an error.
  constexpr int kTries = 5;
  absl::Status status;
  for (int i = 0; i < kTries; ++i) {
    BATON_ASSIGN_OR_RETURN(context_, OpenUcxContext(options_));
    status = OpenWorker();
    if (status.ok()) break;
    worker_.reset();
    context_.reset();
  }
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("UCX transports '", tls,
                                     "' are not available on this machine: ",
                                     status.message()));
  }
  BATON_RETURN_IF_ERROR(SetReceivers());
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenDoor(properties));
  properties->name = absl::StrCat("ucx/", tls);
  properties->detects_peer_death = true;
  // Measured over loopback TCP: 128 KB and 4 MB are 10 to 40 % slower.
  properties->good_payload_bytes = kGoodUcxPayloadBytes;
  if (options_.memory == UcxMemory::kCuda) {
    properties->good_payload_bytes = kGoodDevicePayloadBytes;
    properties->prefers_runs = true;
  }
  SetLimits(options_.max_sends_in_flight, options_.max_sends_outstanding,
            properties);
  next_tick_ = Clock::Monotonic()->Now();
  // The one UCX call that any thread may make.
  mailbox_->Attach([worker = worker_.get()] { ucp_worker_signal(worker); });
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  ucs_status_t made = UCS_OK;
  MakeUcxSockets(
      [&] { made = ucp_worker_create(context_.get(), &params, &worker); });
  BATON_RETURN_IF_ERROR(UcxStatus(made, "ucp_worker_create"));
  worker_.reset(worker);
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_get_efd(worker, &event_fd_), "ucp_worker_get_efd"));
  ucp_worker_attr_t attr{};
  attr.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_query(worker, &attr), "ucp_worker_query"));
  if (attr.max_am_header < kMaxHeaderBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("message headers of at most ", attr.max_am_header,
                     " bytes, Baton needs ", kMaxHeaderBytes));
  }
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenDoor(TransportProperties* properties) {
  BATON_ASSIGN_OR_RETURN(
      listen_address_, MakeSocketAddress(options_.listen_host, options_.port));
  BATON_ASSIGN_OR_RETURN(
      const std::string advertised,
      AdvertisedHost(options_.listen_host, options_.advertise_host));
  if (!options_.own_port) {
    door_.emplace();
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(door_, Door::Open(listen_address_));
  properties->address = FormatHostPort(advertised, door_->port());
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenListener() {
  const SocketAddress any_port = WithPort(listen_address_, 0);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {any_port.get(), any_port.length};
  params.conn_handler = {&UcxLoop::OnConnectionRequest, this};
  ucp_listener_h listener = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_listener_create(worker_.get(), &params, &listener),
                "ucp_listener_create"));
  listener_.reset(listener);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_listener_query(listener, &attr), "ucp_listener_query"));
  listener_port_ = PortOf(attr.sockaddr);
  const absl::Status gate =
      gate_.Attach(WithPort(listen_address_, listener_port_));
  if (!gate.ok()) {
    LOG(WARNING) << "kv_transfer: UCX's port stays open to anybody: " << gate;
  }
  return absl::OkStatus();
}

void UcxLoop::Map(MapOp op) {
  ucp_mem_map_params_t params{};
  params.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                      UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  params.address = op.memory.data();
  params.length = op.memory.size();
  params.memory_type = UCS_MEMORY_TYPE_CUDA;
  ucp_mem_h mapped = nullptr;
  const absl::Status status =
      UcxStatus(ucp_mem_map(context_.get(), &params, &mapped),
                absl::StrCat("mapping ", op.memory.size(),
                             " bytes of a CUDA device's memory"));
  if (status.ok()) {
    mapped_.push_back({op.memory, UcxMapped(mapped, {context_.get()})});
  }
  op.done(status);
}

}  // namespace baton::kv_transfer
