#include "kv_transfer/transports/ucx/ucx_loop.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/ucx/ucx_limits.h"

namespace baton::kv_transfer {
namespace {

// Long past the second in which UCX was seen to complete what a forced close
// leaves behind.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);

absl::Time Now() { return Clock::Monotonic()->Now(); }

}  // namespace

UcxLoop::UcxLoop(const UcxOptions& options, UcxMailbox* mailbox,
                 const RegionTable* regions)
    : options_(options), mailbox_(mailbox), regions_(regions) {}

UcxLoop::~UcxLoop() { CHECK(peers_.empty()); }

absl::Status UcxLoop::Open(TransportProperties* properties) {
  const char* operators_tls = std::getenv("UCX_TLS");
  const std::string tls = operators_tls ? operators_tls : options_.tls;
  BATON_RETURN_IF_ERROR(OpenContext(tls));
  absl::Status status = OpenWorker();
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("UCX transports '", tls,
                                     "' are not available on this machine: ",
                                     status.message()));
  }
  BATON_RETURN_IF_ERROR(SetReceivers());
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenListener(properties));
  properties->name = absl::StrCat("ucx/", tls);
  properties->detects_peer_death = true;
  properties->max_header_bytes = kUcxMaxHeaderBytes;
  properties->max_payload_bytes = kUcxMaxPayloadBytes;
  properties->max_payload_extents = kUcxMaxPayloadExtents;
  properties->max_sends_in_flight = options_.max_sends_in_flight;
  properties->max_sends_outstanding = options_.max_sends_outstanding;
  next_tick_ = Now();
  mailbox_->Attach(worker_.get());
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenContext(const std::string& tls) {
  ucp_config_t* raw_config = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_config_read(nullptr, nullptr, &raw_config),
                "reading the UCX environment"));
  const UcxConfig config(raw_config);
  const std::string what =
      absl::StrCat("UCX transports '", tls, "' are not available");
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_config_modify(config.get(), "TLS", tls.c_str()), what));
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  // No remote memory access: a peer's put or get finds no handler.
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "baton";
  ucp_context_h context = nullptr;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_init(&params, config.get(), &context), what));
  context_.reset(context);
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  ucp_worker_h worker = nullptr;
  BATON_RETURN_IF_ERROR(UcxStatus(
      ucp_worker_create(context_.get(), &params, &worker), "ucp_worker_create"));
  worker_.reset(worker);
  BATON_RETURN_IF_ERROR(UcxStatus(ucp_worker_get_efd(worker, &event_fd_),
                                  "ucp_worker_get_efd"));
  ucp_worker_attr_t attr{};
  attr.field_mask = UCP_WORKER_ATTR_FIELD_MAX_AM_HEADER;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_worker_query(worker, &attr), "ucp_worker_query"));
  if (attr.max_am_header < kUcxMaxHeaderBytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("message headers of at most ", attr.max_am_header,
                     " bytes, Baton needs ", kUcxMaxHeaderBytes));
  }
  return absl::OkStatus();
}

absl::Status UcxLoop::OpenListener(TransportProperties* properties) {
  BATON_ASSIGN_OR_RETURN(
      const SocketAddress address,
      MakeSocketAddress(options_.listen_host, options_.port));
  std::string advertised = options_.advertise_host;
  if (advertised.empty()) {
    if (IsAnyAddress(address)) {
      return absl::InvalidArgumentError(
          absl::StrCat("advertise_host: needed, because listen_host ",
                       options_.listen_host, " names no one address"));
    }
    advertised = options_.listen_host;
  }
  BATON_RETURN_IF_ERROR(MakeSocketAddress(advertised, 1).status());
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR |
                      UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {address.get(), address.length};
  params.conn_handler = {&UcxLoop::OnConnectionRequest, this};
  ucp_listener_h listener = nullptr;
  BATON_RETURN_IF_ERROR(UcxStatus(
      ucp_listener_create(worker_.get(), &params, &listener),
      absl::StrCat("listening on ",
                   FormatHostPort(options_.listen_host, options_.port))));
  listener_.reset(listener);
  ucp_listener_attr_t attr{};
  attr.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_listener_query(listener, &attr), "ucp_listener_query"));
  properties->address = FormatHostPort(advertised, PortOf(attr.sockaddr));
  return absl::OkStatus();
}

void UcxLoop::Run() {
  for (;;) {
    bool busy = ucp_worker_progress(worker_.get()) != 0;
    busy |= RunMail();
    Accept();
    busy |= ServeDirtyPeers();
    Tick();
    if (stopping_ && Drained()) break;
    if (!busy) Sleep();
  }
  mailbox_->Detach();
  listener_.reset();
  if (!peers_.empty()) {
    // Requests are still outstanding. Without progress nothing writes to memory
    // any more, but destroying the worker under them could crash: leak it all.
    LOG(ERROR) << "kv_transfer: " << peers_.size()
               << " peers did not become quiet in " << kStopTimeout;
    for (auto& [id, peer] : peers_) peer.release();
    peers_.clear();
    worker_.release();
    context_.release();
  }
  worker_.reset();
  context_.reset();
}

bool UcxLoop::RunMail() {
  UcxMailbox::Mail mail = mailbox_->Take();
  for (UcxOp& op : mail.ops) {
    if (auto* send = std::get_if<UcxSendOp>(&op)) {
      Send(std::move(*send));
    } else if (auto* connect = std::get_if<UcxConnectOp>(&op)) {
      Connect(*connect);
    } else if (auto* close = std::get_if<UcxCloseOp>(&op)) {
      Peer* peer = FindPeer(close->peer);
      if (peer != nullptr) Fail(*peer, absl::CancelledError("closed by us"));
    } else {
      handler_ = std::get<UcxStartOp>(op).handler;
    }
  }
  if (mail.wake) next_tick_ = Now();
  if (mail.stop) BeginStop();
  return !mail.ops.empty() || mail.wake || mail.stop;
}

void UcxLoop::Tick() {
  const absl::Time now = Now();
  if (now < next_tick_) return;
  next_tick_ = now + options_.tick_interval;
  for (auto& [id, peer] : peers_) {
    if (peer->state == PeerState::kConnecting && now >= peer->connect_deadline) {
      Fail(*peer, absl::DeadlineExceededError("no connection in time"));
    }
  }
  if (handler_ != nullptr) handler_->OnTick();
}

void UcxLoop::Sleep() {
  const ucs_status_t armed = ucp_worker_arm(worker_.get());
  if (armed == UCS_ERR_BUSY) return;  // there is something to progress
  // Mail that came before arming left no event behind.
  if (mailbox_->HasMail() || !dirty_.empty()) return;
  const absl::Duration left = next_tick_ - Now();
  const int64_t ms = absl::ToInt64Milliseconds(left + absl::Microseconds(999));
  pollfd fd{event_fd_, POLLIN, 0};
  poll(&fd, 1, static_cast<int>(std::clamp<int64_t>(ms, 0, 1000)));
}

void UcxLoop::BeginStop() {
  stopping_ = true;
  stop_deadline_ = Now() + kStopTimeout;
  for (ucp_conn_request_h request : connection_requests_) {
    ucp_listener_reject(listener_.get(), request);
  }
  connection_requests_.clear();
  for (auto& [id, peer] : peers_) {
    Fail(*peer, absl::CancelledError("the transport is stopping"));
  }
}

bool UcxLoop::Drained() { return peers_.empty() || Now() >= stop_deadline_; }

void UcxLoop::Accept() {
  if (handler_ == nullptr || connection_requests_.empty()) return;
  for (ucp_conn_request_h request :
       std::exchange(connection_requests_, {})) {
    const std::optional<PeerId> id =
        stopping_ ? std::nullopt : mailbox_->AddIncoming();
    if (!id.has_value()) {
      ucp_listener_reject(listener_.get(), request);
      continue;
    }
    ucp_conn_request_attr_t attr{};
    attr.field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR;
    const bool known = ucp_conn_request_query(request, &attr) == UCS_OK;
    Peer& peer = AddPeer(
        *id, known ? FormatSocketAddress(attr.client_address) : "unknown",
        /*incoming=*/true);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
    params.conn_request = request;
    const absl::Status status = CreateEndpoint(peer, params);
    if (!status.ok()) Fail(peer, status);
  }
}

void UcxLoop::Connect(const UcxConnectOp& op) {
  Peer& peer = AddPeer(op.peer, op.address, /*incoming=*/false);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {op.socket_address.get(), op.socket_address.length};
  const absl::Status status = CreateEndpoint(peer, params);
  if (status.ok()) {
    peer.owes_preamble = true;
    MarkDirty(peer);
  } else {
    Fail(peer, status);
  }
}

absl::Status UcxLoop::CreateEndpoint(Peer& peer, ucp_ep_params_t params) {
  params.field_mask |=
      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {&UcxLoop::OnEndpointError, &peer};
  BATON_RETURN_IF_ERROR(
      UcxStatus(ucp_ep_create(worker_.get(), &params, &peer.endpoint),
                absl::StrCat("connecting to ", peer.address)));
  by_endpoint_[peer.endpoint] = &peer;
  return absl::OkStatus();
}

UcxLoop::Peer& UcxLoop::AddPeer(PeerId id, std::string address, bool incoming) {
  auto peer = std::make_unique<Peer>();
  peer->loop = this;
  peer->id = id;
  peer->address = std::move(address);
  peer->incoming = incoming;
  peer->connect_deadline = Now() + options_.connect_timeout;
  Peer& added = *peer;
  peers_[id] = std::move(peer);
  return added;
}

UcxLoop::Peer* UcxLoop::FindPeer(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

void UcxLoop::MarkDirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.id);
}

void UcxLoop::Fail(Peer& peer, absl::Status why) {
  CHECK(!why.ok());
  if (!peer.failure.ok()) return;
  peer.failure = std::move(why);
  MarkDirty(peer);
}

bool UcxLoop::ServeDirtyPeers() {
  if (dirty_.empty()) return false;
  for (PeerId id : std::exchange(dirty_, {})) {
    Peer& peer = *FindPeer(id);
    peer.dirty = false;
    ServePeer(peer);
    if (peer.state == PeerState::kDown && !peer.close_pending &&
        peer.sends_in_flight == 0 && peer.receives_in_flight == 0 &&
        !peer.dirty && mailbox_->TryRemove(id)) {
      peers_.erase(id);
    }
  }
  return true;
}

void UcxLoop::ServePeer(Peer& peer) {
  if (!peer.failure.ok()) {
    if (peer.state != PeerState::kDown) TakeDown(peer);
    return;
  }
  if (peer.owes_preamble) {
    peer.owes_preamble = false;
    SendPreamble(peer);
  }
  StartQueued(peer);
}

void UcxLoop::TakeDown(Peer& peer) {
  peer.state = PeerState::kDown;
  mailbox_->SetDown(peer.id);
  if (peer.was_up || !peer.incoming) {
    handler_->OnPeerDown(peer.id, peer.failure);
  }
  for (std::unique_ptr<Outgoing>& outgoing : std::exchange(peer.queue, {})) {
    mailbox_->EndSend(peer.id);
    handler_->OnSent(peer.id, outgoing->cookie, peer.failure);
  }
  CloseEndpoint(peer);
}

void UcxLoop::CloseEndpoint(Peer& peer) {
  if (peer.endpoint == nullptr) return;
  by_endpoint_.erase(peer.endpoint);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                       UCP_OP_ATTR_FIELD_USER_DATA;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = &UcxLoop::OnEndpointClosed;
  param.user_data = &peer;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(peer.endpoint, &param);
  peer.endpoint = nullptr;
  if (UCS_PTR_IS_ERR(request)) {
    LOG(WARNING) << "kv_transfer: "
                 << UcxStatus(UCS_PTR_STATUS(request), "closing an endpoint");
  }
  peer.close_pending = UCS_PTR_IS_PTR(request);
}

void UcxLoop::OnConnectionRequest(ucp_conn_request_h request, void* loop) {
  auto* self = static_cast<UcxLoop*>(loop);
  if (self->stopping_ ||
      self->connection_requests_.size() >= self->options_.max_peers) {
    ucp_listener_reject(self->listener_.get(), request);
    return;
  }
  self->connection_requests_.push_back(request);
}

void UcxLoop::OnEndpointError(void* arg, ucp_ep_h, ucs_status_t status) {
  auto* peer = static_cast<Peer*>(arg);
  peer->loop->Fail(*peer, UcxStatus(status, "connection lost"));
}

void UcxLoop::OnEndpointClosed(void* request, ucs_status_t, void* arg) {
  auto* peer = static_cast<Peer*>(arg);
  ucp_request_free(request);
  peer->close_pending = false;
  peer->loop->MarkDirty(*peer);
}

}  // namespace baton::kv_transfer
