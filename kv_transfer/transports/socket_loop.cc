#include "kv_transfer/transports/socket_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"

namespace baton::kv_transfer {
namespace {

// What epoll says of which socket: a peer's id, or one of these.
constexpr uint64_t kWakeEvent = 0;
constexpr uint64_t kListener = ~uint64_t{0};

// Longer than the next message of a hand-off takes to come, shorter than
// anybody would miss the CPU for.
constexpr absl::Duration kLinger = absl::Microseconds(30);

absl::Time Now() { return Clock::Monotonic()->Now(); }

}  // namespace

SocketLoop::~SocketLoop() { CHECK(peers_.empty()); }

absl::Status SocketLoop::OpenEvents() {
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
  return absl::OkStatus();
}

void SocketLoop::SetListener(ScopedFd listener) {
  listener_ = std::move(listener);
  epoll_event event{};
  event.data.u64 = kListener;
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event) == 0);
}

void SocketLoop::Run() {
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
    Work();
    for (const PeerId id : std::exchange(written_, {})) {
      if (Peer* peer = FindPeer(id); peer != nullptr) TellOfWritten(*peer);
    }
  }
  mailbox_->Detach();
}

void SocketLoop::RunMail() {
  Mailbox::Mail mail = mailbox_->Take();
  for (MailOp& op : mail.ops) {
    if (auto* send = std::get_if<SendOp>(&op)) {
      Send(std::move(*send));
    } else if (auto* connect = std::get_if<ConnectOp>(&op)) {
      BeginConnect(AddPeer(connect->peer, connect->address, Came::kByUs),
                   connect->socket_address);
    } else if (auto* close = std::get_if<CloseOp>(&op)) {
      Peer* peer = FindPeer(close->peer);
      if (peer != nullptr) Fail(*peer, absl::CancelledError("closed by us"));
    } else if (auto* start = std::get_if<StartOp>(&op)) {
      handler_ = start->handler;
      WatchListener(true);
    }
  }
  if (mail.wake) next_tick_ = Now();
  if (mail.stop) BeginStop();
}

void SocketLoop::Send(SendOp op) {
  Peer* peer = FindPeer(op.peer);
  CHECK(peer != nullptr);  // a peer with outstanding sends is not removed
  if (peer->state == PeerState::kDown) {
    FinishSend(*peer, op.cookie, peer->failure);
    MarkDirty(*peer);
    return;
  }
  Queue(*peer, std::move(op));
}

void SocketLoop::Tick() {
  const absl::Time now = Now();
  if (now < next_tick_) return;
  next_tick_ = now + tick_interval_;
  if (handler_ != nullptr) WatchListener(true);
  for (auto& [id, peer] : peers_) {
    if (peer->state == PeerState::kConnecting &&
        now >= peer->connect_deadline) {
      Fail(*peer, absl::DeadlineExceededError("no connection in time"));
    }
  }
  if (handler_ != nullptr) handler_->OnTick();
}

void SocketLoop::ServeSockets() {
  const absl::Time now = Now();
  const bool work = HasWork() || !written_.empty();
  const bool busy =
      work || !dirty_.empty() || now < awake_until_ || mailbox_->HasMail();
  if (!busy) OnIdle();
  const absl::Duration left = next_tick_ - now + absl::Microseconds(999);
  const int64_t ms =
      busy ? 0 : std::clamp<int64_t>(absl::ToInt64Milliseconds(left), 0, 1000);
  std::array<epoll_event, 64> events;
  const int n =
      epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                 static_cast<int>(ms));
  if (n > 0 || work) awake_until_ = Now() + kLinger;
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
        OnWritable(*peer);
        Watch(*peer);
      }
      if ((events[i].events & ~EPOLLOUT) != 0) OnReadable(*peer);
    }
  }
}

void SocketLoop::Accept() {
  // Bounded, so that visitors starve nobody.
  for (int i = 0; i < 16; ++i) {
    sockaddr_storage from{};
    socklen_t length = sizeof(from);
    ScopedFd socket(accept4(listener_.get(), reinterpret_cast<sockaddr*>(&from),
                            &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.valid()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors, say: the next tick tries again.
      if (errno != EAGAIN && errno != EWOULDBLOCK) WatchListener(false);
      return;
    }
    const absl::StatusOr<std::string> visitor = Welcome(socket.get(), from);
    if (!visitor.ok()) {
      LOG(WARNING) << "kv_transfer: hung up on a visitor: "
                   << visitor.status().message();
      continue;
    }
    std::optional<PeerId> id = mailbox_->AddIncoming();
    if (!id.has_value() && HangUpOnOldestVisitor()) {
      id = mailbox_->AddIncoming();
    }
    if (!id.has_value()) continue;
    Peer& peer = AddPeer(*id, *visitor, Came::kToUs);
    peer.socket = std::move(socket);
    Watch(peer);
  }
}

// Those that have not said hello take no place from others.
bool SocketLoop::HangUpOnOldestVisitor() {
  Peer* oldest = nullptr;
  for (auto& [id, peer] : peers_) {
    if (!peer->incoming || peer->state != PeerState::kConnecting) continue;
    if (oldest == nullptr ||
        peer->connect_deadline < oldest->connect_deadline) {
      oldest = peer.get();
    }
  }
  if (oldest == nullptr) return false;
  Fail(*oldest, absl::ResourceExhaustedError("somebody else came"));
  ServeDirtyPeers();
  return true;
}

void SocketLoop::BeginStop() {
  stopping_ = true;
  WatchListener(false);
  listener_ = ScopedFd();
  for (auto& [id, peer] : peers_) {
    Fail(*peer, absl::CancelledError("the transport is stopping"));
  }
}

SocketLoop::Peer& SocketLoop::AddPeer(PeerId id, std::string address,
                                      Came came) {
  std::unique_ptr<Peer> peer = NewPeer();
  peer->id = id;
  peer->address = std::move(address);
  peer->incoming = came == Came::kToUs;
  peer->connect_deadline = Now() + connect_timeout_;
  Peer& added = *peer;
  peers_[id] = std::move(peer);
  return added;
}

void SocketLoop::Watch(Peer& peer) {
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

ScopedFd SocketLoop::Release(Peer& peer) {
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, peer.socket.get(), nullptr) ==
         0);
  return std::move(peer.socket);
}

void SocketLoop::WatchListener(bool on) {
  if (!listener_.valid() || listener_watched_ == on) return;
  listener_watched_ = on;
  epoll_event event{};
  event.events = on ? uint32_t{EPOLLIN} : 0u;
  event.data.u64 = kListener;
  PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) == 0);
}

SocketLoop::Peer* SocketLoop::FindPeer(PeerId id) {
  auto it = peers_.find(id);
  return it == peers_.end() ? nullptr : it->second.get();
}

void SocketLoop::MarkDirty(Peer& peer) {
  if (peer.dirty) return;
  peer.dirty = true;
  dirty_.push_back(peer.id);
}

void SocketLoop::SetUp(Peer& peer) {
  peer.state = PeerState::kUp;
  peer.was_up = true;
  mailbox_->SetUp(peer.id);
  handler_->OnPeerUp(peer.id, peer.address);
}

void SocketLoop::Fail(Peer& peer, absl::Status why) {
  CHECK(!why.ok());
  if (!peer.failure.ok()) return;
  peer.failure = std::move(why);
  MarkDirty(peer);
}

void SocketLoop::FinishSend(Peer& peer, uint64_t cookie,
                            const absl::Status& status) {
  mailbox_->EndSend(peer.id);
  handler_->OnSent(peer.id, cookie, status);
}

void SocketLoop::Written(Peer& peer, uint64_t cookie) {
  if (peer.written.empty()) written_.push_back(peer.id);
  peer.written.push_back(cookie);
}

void SocketLoop::TellOfWritten(Peer& peer) {
  for (const uint64_t cookie : std::exchange(peer.written, {})) {
    FinishSend(peer, cookie, absl::OkStatus());
  }
}

void SocketLoop::ServeDirtyPeers() {
  for (PeerId id : std::exchange(dirty_, {})) {
    Peer& peer = *FindPeer(id);
    peer.dirty = false;
    if (peer.failure.ok()) continue;
    if (peer.state != PeerState::kDown) TakeDown(peer);
    // Sends that are still in the mail find it, and mark it again.
    if (!peer.dirty && mailbox_->TryRemove(id)) peers_.erase(id);
  }
}

void SocketLoop::TakeDown(Peer& peer) {
  peer.state = PeerState::kDown;
  mailbox_->SetDown(peer.id);
  peer.socket = ScopedFd();
  if (peer.was_up || !peer.incoming) {
    handler_->OnPeerDown(peer.id, peer.failure);
  }
  TellOfWritten(peer);
  CompleteAll(peer);
}

}  // namespace baton::kv_transfer
