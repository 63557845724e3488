#include "kv_transfer/transports/tcp/tcp_loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

#include "common/status_macros.h"
#include "kv_transfer/transports/tcp/tcp_wire.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

// Larger messages cost less each; smaller ones are still in the caches when
// they are hashed. Measured: docs/performance.md.
constexpr uint64_t kGoodPayloadBytes = uint64_t{256} << 10;

// More than the longest frame without its payload. What of a payload lands here
// first is copied once more, so it is not much more.
constexpr size_t kBufferBytes = size_t{8} << 10;
static_assert(kBufferBytes >= tcp_wire::kLengthsBytes + kMaxHeaderBytes);

// A host that vanished must not hold a place for ever: after so long it is
// given up, at the next probe if nothing was under way. Peers that only stopped
// are noticed by others, sooner.
constexpr int kUnansweredMs = 15'000;
constexpr int kIdleSeconds = 5, kProbeSeconds = 3;

void SetOptions(int socket) {
  const auto set = [&](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof(value));
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUnansweredMs);
}

}  // namespace

TcpLoop::TcpLoop(const TcpOptions& options, Mailbox* mailbox,
                 const RegionTable* regions)
    : SocketLoop(options.connect_timeout, options.tick_interval, mailbox),
      options_(options),
      regions_(regions) {}

absl::Status TcpLoop::Open(TransportProperties* properties) {
  BATON_RETURN_IF_ERROR(OpenEvents());
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenListener(properties));
  properties->name = "tcp";
  properties->detects_peer_death = true;
  properties->good_payload_bytes = kGoodPayloadBytes;
  SetLimits(options_.max_sends_in_flight, options_.max_sends_outstanding,
            properties);
  return absl::OkStatus();
}

absl::Status TcpLoop::OpenListener(TransportProperties* properties) {
  BATON_ASSIGN_OR_RETURN(
      const std::string advertised,
      AdvertisedHost(options_.listen_host, options_.advertise_host));
  BATON_ASSIGN_OR_RETURN(
      const SocketAddress address,
      MakeSocketAddress(options_.listen_host, options_.port));
  BATON_ASSIGN_OR_RETURN(TcpListener listener, ListenTcp(address));
  properties->address = FormatHostPort(advertised, listener.port);
  SetListener(std::move(listener.socket));
  return absl::OkStatus();
}

std::unique_ptr<SocketLoop::Peer> TcpLoop::NewPeer() const {
  return std::make_unique<TcpPeer>(kBufferBytes);
}

absl::StatusOr<std::string> TcpLoop::Welcome(int socket,
                                             const sockaddr_storage& from) {
  SetOptions(socket);
  return FormatSocketAddress(from);
}

void TcpLoop::BeginConnect(Peer& peer, const SocketAddress& to) {
  absl::StatusOr<ScopedFd> socket = BeginConnectTcp(to);
  if (!socket.ok()) {
    Fail(peer, socket.status());
    return;
  }
  peer.socket = *std::move(socket);
  SetOptions(peer.socket.get());
  peer.full = true;  // until it is connected
  Watch(peer);
}

void TcpLoop::OnWritable(Peer& peer) {
  TcpPeer& tcp = Tcp(peer);
  if (!peer.failure.ok()) return;
  if (!peer.incoming && !tcp.greeted) {
    const absl::Status connected = ConnectResult(peer.socket.get());
    if (!connected.ok()) {
      Fail(peer, connected);
      return;
    }
    Greet(tcp);
  }
  Flush(tcp);
}

void TcpLoop::Greet(TcpPeer& peer) {
  // A few bytes into an empty socket buffer: all or an error.
  const absl::string_view greeting = tcp_wire::kGreeting;
  if (send(peer.socket.get(), greeting.data(), greeting.size(),
           MSG_DONTWAIT | MSG_NOSIGNAL) !=
      static_cast<ssize_t>(greeting.size())) {
    Fail(peer, absl::UnavailableError("the peer hung up"));
    return;
  }
  peer.greeted = true;
}

void TcpLoop::TakeGreeting(TcpPeer& peer) {
  const ByteSpan said = absl::MakeConstSpan(peer.buffer).subspan(0, peer.end);
  const absl::Status status = tcp_wire::CheckGreeting(said);
  if (!status.ok()) {
    if (peer.incoming && options_.on_stranger) {
      options_.on_stranger(
          Release(peer),
          std::string(reinterpret_cast<const char*>(said.data()), said.size()));
    }
    Fail(peer, status);
    return;
  }
  if (said.size() < tcp_wire::kGreeting.size()) return;
  peer.begin = tcp_wire::kGreeting.size();
  if (peer.incoming) Greet(peer);
  if (peer.failure.ok()) SetUp(peer);
}

void TcpLoop::MarkBusy(TcpPeer& peer) {
  if (peer.busy) return;
  peer.busy = true;
  busy_.push_back(peer.id);
}

void TcpLoop::Work() {
  // Those that are there now, each once.
  for (size_t i = busy_.size(); i > 0; --i) {
    const PeerId id = busy_.front();
    busy_.pop_front();
    Peer* const found = FindPeer(id);
    if (found == nullptr) continue;
    TcpPeer& peer = Tcp(*found);
    peer.busy = false;
    if (peer.state == PeerState::kDown) continue;
    Flush(peer);
  }
}

void TcpLoop::CompleteAll(Peer& down) {
  TcpPeer& peer = Tcp(down);
  if (peer.reading.has_value() && peer.reading->cookie.has_value()) {
    handler_->OnLanded(peer.id, *peer.reading->cookie, peer.failure);
  }
  peer.reading.reset();
  if (peer.writing.has_value()) {
    const uint64_t cookie = peer.writing->cookie;
    peer.writing.reset();
    FinishSend(peer, cookie, peer.failure);
  }
  for (std::deque<SendOp>* queue : {&peer.messages, &peer.payloads}) {
    for (const SendOp& op : std::exchange(*queue, {})) {
      FinishSend(peer, op.cookie, peer.failure);
    }
  }
}

}  // namespace baton::kv_transfer
