#include "kv_transfer/transports/local/local_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/local/local_wire.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

// What epoll says of which socket: a peer's id, or one of these.
constexpr uint64_t kWakeEvent = 0;
constexpr uint64_t kListener = ~uint64_t{0};

// Larger messages cost less each; smaller ones are still in the caches when
// they are hashed. Measured: docs/performance.md.
constexpr uint64_t kGoodPayloadBytes = uint64_t{512} << 10;

// Longer than the next message of a hand-off takes to come, shorter than
// anybody would miss the CPU for.
constexpr absl::Duration kLinger = absl::Microseconds(30);

absl::Time Now() { return Clock::Monotonic()->Now(); }

}  // namespace

LocalLoop::LocalLoop(const LocalOptions& options, Mailbox* mailbox,
                     const RegionTable* regions)
    : options_(options),
      mailbox_(mailbox),
      regions_(regions),
      // One byte more, so that a datagram that is too long shows.
      buffer_(local_wire::kMaxDatagramBytes + 1) {}

LocalLoop::~LocalLoop() { CHECK(peers_.empty()); }

absl::Status LocalLoop::Open(TransportProperties* properties) {
  epoll_ = ScopedFd(epoll_create1(EPOLL_CLOEXEC));
  wake_event_ = ScopedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll_.valid() || !wake_event_.valid()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("epoll or eventfd: ", strerror(errno)));
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeEvent;
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_event_.get(), &event) ==
         0);
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenListener(properties));
  properties->name = "local/memfd";
  properties->detects_peer_death = true;
  properties->shares_memory = true;
  properties->max_header_bytes = kMaxHeaderBytes;
  properties->max_payload_bytes = kMaxPayloadBytes;
  properties->good_payload_bytes = kGoodPayloadBytes;
  properties->max_payload_extents = kMaxPayloadExtents;
  properties->max_sends_in_flight = options_.max_sends_in_flight;
  properties->max_sends_outstanding = options_.max_sends_outstanding;
  return absl::OkStatus();
}

absl::Status LocalLoop::OpenListener(TransportProperties* properties) {
  BATON_RETURN_IF_ERROR(MakeSocketAddress(options_.host, 1).status());
  const bool any_port = options_.port == 0;
  // Names of their own for processes that start one after another.
  constexpr uint16_t kFirstPort = 32768, kPorts = 16384;
  constexpr int kTries = 256;
  const int first = getpid() * 4;
  absl::Status status;
  for (int i = 0; i < (any_port ? kTries : 1); ++i) {
    const uint16_t port =
        any_port ? static_cast<uint16_t>(kFirstPort + (first + i) % kPorts)
                 : options_.port;
    BATON_ASSIGN_OR_RETURN(const SocketAddress address,
                           MakeSocketAddress(options_.host, port));
    properties->address = FormatSocketAddress(address.storage);
    absl::StatusOr<ScopedFd> listener = ListenLocally(properties->address);
    if (listener.ok()) {
      listener_ = *std::move(listener);
      epoll_event event{};
      event.data.u64 = kListener;
      PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) ==
             0);
      return absl::OkStatus();
    }
    status = listener.status();
  }
  return status;
}

void LocalLoop::Run() {
  thread_ = std::this_thread::get_id();
  next_tick_ = Now();
  mailbox_->Attach([this] {
    // This thread looks for mail before it sleeps.
    if (OnThread()) return;
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n =
        write(wake_event_.get(), &one, sizeof(one));
  });
  for (;;) {
    RunMail();
    Tick();
    ServeDirtyPeers();
    if (stopping_ && peers_.empty()) break;
    ServeSockets();
    CopySome();
  }
  mailbox_->Detach();
}

void LocalLoop::RunMail() {
  Mailbox::Mail mail = mailbox_->Take();
  for (MailOp& op : mail.ops) {
    if (auto* send = std::get_if<SendOp>(&op)) {
      Send(std::move(*send));
    } else if (auto* connect = std::get_if<ConnectOp>(&op)) {
      Connect(*connect);
    } else if (auto* close = std::get_if<CloseOp>(&op)) {
      Peer* peer = FindPeer(close->peer);
      if (peer != nullptr) Fail(*peer, absl::CancelledError("closed by us"));
    } else {
      handler_ = std::get<StartOp>(op).handler;
      WatchListener(true);
    }
  }
  if (mail.wake) next_tick_ = Now();
  if (mail.stop) BeginStop();
}

void LocalLoop::Tick() {
  const absl::Time now = Now();
  if (now < next_tick_) return;
  next_tick_ = now + options_.tick_interval;
  if (handler_ != nullptr) WatchListener(true);
  for (auto& [id, peer] : peers_) {
    if (peer->state == PeerState::kConnecting &&
        now >= peer->connect_deadline) {
      Fail(*peer, absl::DeadlineExceededError("no connection in time"));
    }
  }
  if (handler_ != nullptr) handler_->OnTick();
}

void LocalLoop::ServeSockets() {
  const absl::Time now = Now();
  const bool busy = !copying_.empty() || !owed_.empty() || !dirty_.empty() ||
                    now < awake_until_ || mailbox_->HasMail();
  if (!busy) copied_in_a_row_ = 0;
  const absl::Duration left = next_tick_ - now + absl::Microseconds(999);
  const int64_t ms =
      busy ? 0 : std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 1000);
  std::array<epoll_event, 64> events;
  const int n =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                 static_cast<int>(ms));
  if (n > 0 || !copying_.empty() || !owed_.empty()) {
    awake_until_ = Now() + kLinger;
  }
  for (int i = 0; i < n; ++i) {
    const uint64_t which = events[i].data.u64;
    if (which == kWakeEvent) {
      uint64_t count;
      [[maybe_unused]] const ssize_t got =
          read(wake_event_.get(), &count, sizeof(count));
    } else if (which == kListener) {
      Accept();
    } else if (Peer* peer = FindPeer(PeerId{which}); peer != nullptr) {
      if ((events[i].events & EPOLLOUT) != 0) {
        peer->full = false;
        FlushDone(*peer);
        FlushOutbox(*peer);
        Watch(*peer);
      }
      if ((events[i].events & ~EPOLLOUT) != 0) Receive(*peer);
    }
  }
  FlushOwed();
}

void LocalLoop::Accept() {
  // Bounded, so that visitors starve nobody.
  for (int i = 0; i < 16; ++i) {
    ScopedFd socket(accept4(listener_.get(), nullptr, nullptr,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors, say: the next tick tries again.
      if (errno != EAGAIN && errno != EWOULDBLOCK) WatchListener(false);
      return;
    }
    const absl::StatusOr<pid_t> process = CheckedPeerProcess(socket.get());
    if (!process.ok()) {
      LOG(WARNING) << "kv_transfer: hung up on a local visitor: "
                   << process.status().message();
      continue;
    }
    const std::optional<PeerId> id = mailbox_->AddIncoming();
    if (!id.has_value()) continue;
    Peer& peer = AddPeer(*id, absl::StrCat("process ", *process), true);
    peer.socket = std::move(socket);
    Watch(peer);
  }
}

void LocalLoop::Connect(const ConnectOp& op) {
  Peer& peer = AddPeer(op.peer, op.address, false);
  absl::StatusOr<ScopedFd> socket =
      ConnectLocally(FormatSocketAddress(op.socket_address.storage));
  if (!socket.ok()) {
    Fail(peer, socket.status());
    return;
  }
  peer.socket = *std::move(socket);
  Watch(peer);
  SendOffer(peer);
}

void LocalLoop::BeginStop() {
  stopping_ = true;
  WatchListener(false);
  listener_ = ScopedFd();
  for (auto& [id, peer] : peers_) {
    Fail(*peer, absl::CancelledError("the transport is stopping"));
  }
}

LocalLoop::Peer& LocalLoop::AddPeer(PeerId id, std::string address,
                                    bool incoming) {
  auto peer = std::make_unique<Peer>();
  peer->id = id;
  peer->address = std::move(address);
  peer->incoming = incoming;
  peer->connect_deadline = Now() + options_.connect_timeout;
  Peer& added = *peer;
  peers_[id] = std::move(peer);
  return added;
}

void LocalLoop::Watch(Peer& peer) {
  if (peer.state == PeerState::kDown) return;
  epoll_event event{};
  event.events = EPOLLIN | (peer.full ? uint32_t{EPOLLOUT} : 0u);
  event.data.u64 = static_cast<uint64_t>(peer.id);
  const int file = peer.socket.get();
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, file, &event) == 0) return;
  if (errno == ENOENT &&
      epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, file, &event) == 0) {
    return;
  }
  Fail(peer, absl::ResourceExhaustedError(
                 absl::StrCat("epoll_ctl: ", strerror(errno))));
}

void LocalLoop::WatchListener(bool on) {
  if (!listener_.valid() || listener_watched_ == on) return;
  listener_watched_ = on;
  epoll_event event{};
  event.events = on ? uint32_t{EPOLLIN} : 0u;
  event.data.u64 = kListener;
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0);
}

LocalLoop::Peer* LocalLoop::FindPeer(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

void LocalLoop::MarkDirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.id);
}

void LocalLoop::Fail(Peer& peer, absl::Status why) {
  CHECK(!why.ok());
  if (!peer.failure.ok()) return;
  peer.failure = std::move(why);
  MarkDirty(peer);
}

void LocalLoop::ServeDirtyPeers() {
  for (PeerId id : std::exchange(dirty_, {})) {
    Peer& peer = *FindPeer(id);
    peer.dirty = false;
    if (peer.failure.ok()) continue;
    if (peer.state != PeerState::kDown) TakeDown(peer);
    // Sends that are still in the mail find it, and mark it again.
    if (!peer.dirty && mailbox_->TryRemove(id)) peers_.erase(id);
  }
}

void LocalLoop::TakeDown(Peer& peer) {
  peer.state = PeerState::kDown;
  mailbox_->SetDown(peer.id);
  peer.socket = ScopedFd();
  if (peer.was_up || !peer.incoming) {
    handler_->OnPeerDown(peer.id, peer.failure);
  }
  if (peer.copy.has_value()) {
    handler_->OnLanded(peer.id, peer.copy->cookie, peer.failure);
    peer.copy.reset();
  }
  peer.waiting.clear();
  peer.memory = PeerMemory();
  for (uint64_t cookie : std::exchange(peer.on_wire, {})) {
    FinishSend(peer, cookie, peer.failure);
  }
  for (const Outgoing& outgoing : std::exchange(peer.outbox, {})) {
    // A payload's cookie was in on_wire.
    if (!outgoing.has_payload) FinishSend(peer, outgoing.cookie, peer.failure);
  }
  for (const SendOp& op : std::exchange(peer.queue, {})) {
    FinishSend(peer, op.cookie, peer.failure);
  }
}

}  // namespace baton::kv_transfer
