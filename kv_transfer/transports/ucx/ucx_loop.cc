#include "kv_transfer/transports/ucx/ucx_loop.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {
namespace {

// Long past the second in which UCX was seen to complete what a forced close
// leaves behind.
constexpr absl::Duration kStopTimeout = absl::Seconds(10);
// UCX closes what was ended within a millisecond.
constexpr absl::Duration kConnectionsTimeout = absl::Milliseconds(200);

absl::Time TimeNow() { return Clock::Monotonic()->Now(); }

}  // namespace

UcxLoop::UcxLoop(const UcxOptions& options, Mailbox* mailbox,
                 const RegionTable* regions)
    : options_(options), mailbox_(mailbox), regions_(regions) {}

UcxLoop::~UcxLoop() { CHECK(peers_.empty()); }

void UcxLoop::Run() {
  turn_.emplace();
  for (;;) {
    bool busy = ucp_worker_progress(worker_.get()) != 0;
    turn_->Pause();
    busy |= RunMail();
    Tick();
    if (std::exchange(sockets_ready_, false)) {
      ServeDoor();
      ServeKnocks();
      busy = true;
    }
    // From here on sockets may be closed: then comes progress.
    busy |= Accept();
    busy |= ServeDirtyPeers();
    if (stopping_ && Drained()) break;
    if (!busy) Sleep();
  }
  mailbox_->Detach();
  gate_.Close();
  // Clients that are still connecting.
  const auto progress = [this] { ucp_worker_progress(worker_.get()); };
  if (!gate_.EndConnections(kConnectionsTimeout, progress)) {
    VLOG(1) << "kv_transfer: connections to UCX's listener are left";
  }
  listener_.reset();
  if (!peers_.empty()) {
    // Requests are still outstanding. Without progress nothing writes to memory
    // any more, but destroying the worker under them could crash: leak it all.
    LOG(ERROR) << "kv_transfer: " << peers_.size()
               << " peers did not become quiet in " << kStopTimeout;
    for (auto& [id, peer] : peers_) peer.release();
    peers_.clear();
    for (MappedRegion& region : mapped_) region.handle.release();
    worker_.release();
    context_.release();
  }
  worker_.reset();
  mapped_.clear();
  context_.reset();
  turn_.reset();
}

bool UcxLoop::RunMail() {
  Mailbox::Mail mail = mailbox_->Take();
  for (MailOp& op : mail.ops) {
    if (auto* send = std::get_if<SendOp>(&op)) {
      Send(std::move(*send));
    } else if (auto* connect = std::get_if<ConnectOp>(&op)) {
      Connect(*connect);
    } else if (auto* close = std::get_if<CloseOp>(&op)) {
      Peer* peer = FindPeer(close->peer);
      if (peer != nullptr) Fail(*peer, absl::CancelledError("closed by us"));
    } else if (auto* map = std::get_if<MapOp>(&op)) {
      Map(std::move(*map));
    } else if (auto* start = std::get_if<StartOp>(&op)) {
      handler_ = start->handler;
    } else if (auto* visitor = std::get_if<VisitorOp>(&op)) {
      if (door_.has_value()) {
        door_->Admit(std::move(visitor->socket), std::move(visitor->said),
                     TimeNow());
      }
      sockets_ready_ = true;
    }
  }
  if (mail.wake) next_tick_ = TimeNow();
  if (mail.stop) BeginStop();
  return !mail.ops.empty() || mail.wake || mail.stop;
}

void UcxLoop::Tick() {
  const absl::Time now = TimeNow();
  if (now < next_tick_) return;
  next_tick_ = now + options_.tick_interval;
  // A busy loop never sleeps, and so never polls them.
  sockets_ready_ = true;
  CloseGateWhenUnused();
  for (auto& [id, peer] : peers_) {
    if (peer->state == PeerState::kConnecting &&
        now >= peer->connect_deadline) {
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
  const absl::Duration left = next_tick_ - TimeNow();
  const int64_t ms = absl::ToInt64Milliseconds(left + absl::Microseconds(999));
  std::vector<pollfd> fds = {{event_fd_, POLLIN, 0}};
  if (handler_ != nullptr && door_.has_value()) door_->AddPollFds(&fds);
  for (const auto& [id, peer] : peers_) {
    if (peer->knock.has_value()) fds.push_back(peer->knock->PollFd());
  }
  turn_->Rest([&] {
    poll(fds.data(), fds.size(),
         static_cast<int>(std::clamp<int64_t>(ms, 0, 1000)));
  });
  for (size_t i = 1; i < fds.size(); ++i) sockets_ready_ |= fds[i].revents != 0;
}

void UcxLoop::BeginStop() {
  stopping_ = true;
  stop_deadline_ = TimeNow() + kStopTimeout;
  for (ucp_conn_request_h request : connection_requests_) {
    ucp_listener_reject(listener_.get(), request);
  }
  connection_requests_.clear();
  door_.reset();
  for (auto& [id, peer] : peers_) {
    Fail(*peer, absl::CancelledError("the transport is stopping"));
  }
}

bool UcxLoop::Drained() {
  return peers_.empty() || TimeNow() >= stop_deadline_;
}

void UcxLoop::ServeDoor() {
  if (handler_ == nullptr || !door_.has_value()) return;
  door_->Serve(TimeNow(), [this] { return LetIn(); });
}

uint16_t UcxLoop::LetIn() {
  if (invitations_.size() >= options_.max_peers || !mailbox_->HasPlace()) {
    return 0;
  }
  if (listener_ == nullptr) {
    absl::Status status;
    turn_->MakeSockets([&] { status = OpenListener(); });
    if (!status.ok()) {
      LOG(ERROR) << "kv_transfer: no peer can connect: " << status;
      listener_.reset();
      return 0;
    }
  }
  gate_.Open();
  invitations_.push_back(TimeNow() + options_.connect_timeout);
  return listener_port_;
}

void UcxLoop::CloseGateWhenUnused() {
  const absl::Time now = TimeNow();
  while (!invitations_.empty() && invitations_.front() <= now) {
    invitations_.pop_front();
  }
  if (listener_ == nullptr || !invitations_.empty() ||
      !connection_requests_.empty()) {
    return;
  }
  for (const auto& [id, peer] : peers_) {
    if (peer->incoming && peer->state == PeerState::kConnecting) return;
  }
  gate_.Close();
}

void UcxLoop::ServeKnocks() {
  for (const auto& [id, peer] : peers_) {
    if (!peer->knock.has_value() || !peer->failure.ok()) continue;
    const absl::StatusOr<std::optional<uint16_t>> port = peer->knock->Serve();
    if (!port.ok()) {
      Fail(*peer, port.status());
    } else if (port->has_value()) {
      peer->knock.reset();
      ConnectEndpoint(*peer, **port);
    }
  }
}

bool UcxLoop::Accept() {
  if (handler_ == nullptr || connection_requests_.empty()) return false;
  for (ucp_conn_request_h request : std::exchange(connection_requests_, {})) {
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
  return true;
}

void UcxLoop::Connect(const ConnectOp& op) {
  Peer& peer = AddPeer(op.peer, op.address, /*incoming=*/false);
  peer.socket_address = op.socket_address;
  absl::StatusOr<Knock> knock = Knock::Begin(op.socket_address);
  if (knock.ok()) {
    peer.knock = *std::move(knock);
  } else {
    Fail(peer, knock.status());
  }
}

void UcxLoop::ConnectEndpoint(Peer& peer, uint16_t port) {
  const SocketAddress listener = WithPort(peer.socket_address, port);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {listener.get(), listener.length};
  absl::Status status;
  turn_->MakeSockets([&] { status = CreateEndpoint(peer, params); });
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
  peer->connect_deadline = TimeNow() + options_.connect_timeout;
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
  peer.knock.reset();
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
  if (!self->invitations_.empty()) self->invitations_.pop_front();
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
