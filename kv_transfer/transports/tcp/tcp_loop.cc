#include "kv_transfer/transports/tcp/tcp_loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/tcp/tcp_wire.h"
#include "kv_transfer/transports/tcp/tls_stream.h"
#include "kv_transfer/transports/tcp_socket.h"

namespace baton::kv_transfer {
namespace {

// Larger messages cost less each; smaller ones are still in the caches when
// they are hashed. Measured: docs/performance.md.
constexpr uint64_t kGoodTcpPayloadBytes = uint64_t{256} << 10;

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
  if (options_.tls.files != nullptr) {
    BATON_ASSIGN_OR_RETURN(contexts_, tls::TlsContexts::Create(
                                          options_.tls.files, MakeMemberContext,
                                          "the data plane"));
  }
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenListener(properties));
  properties->name = options_.tls.is_required() ? kTcpTlsName : kTcpName;
  properties->detects_peer_death = true;
  properties->good_payload_bytes = kGoodTcpPayloadBytes;
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
  if (tcp.stream == nullptr) {
    if (peer.incoming || !IsConnected(tcp)) return;
    SetStream(tcp, options_.tls.is_required());
    ShakeHands(tcp);
  } else {
    SendRest(tcp);
  }
  Flush(tcp);
}

void TcpLoop::OnReadable(Peer& peer) {
  TcpPeer& tcp = Tcp(peer);
  if (!peer.failure.ok()) return;
  if (tcp.stream == nullptr) {
    // There is nothing to read of a connection that does not stand.
    if (!peer.incoming) IsConnected(tcp);
    if (!peer.incoming || !ChooseStream(tcp)) return;
  }
  if (ShakeHands(tcp)) Receive(tcp);
}

bool TcpLoop::IsConnected(TcpPeer& peer) {
  const absl::Status connected = ConnectResult(peer.socket.get());
  if (!connected.ok()) Fail(peer, connected);
  return connected.ok();
}

bool TcpLoop::ChooseStream(TcpPeer& peer) {
  unsigned char first = 0;
  if (contexts_ != nullptr) {
    const absl::StatusOr<uint64_t> seen = ReceivedBytes(
        recv(peer.socket.get(), &first, 1, MSG_DONTWAIT | MSG_PEEK));
    if (!seen.ok()) Fail(peer, seen.status());
    if (!seen.ok() || *seen == 0) return false;
  }
  SetStream(peer, contexts_ != nullptr && first == kFirstByteOfTls);
  return true;
}

void TcpLoop::SetStream(TcpPeer& peer, bool encrypted) {
  peer.encrypted = encrypted;
  if (!encrypted) {
    peer.stream = MakePlainStream();
    return;
  }
  peer.stream =
      MakeTlsStream(contexts_->Get().get(),
                    peer.incoming ? TlsSide::kListens : TlsSide::kConnects);
}

bool TcpLoop::ShakeHands(TcpPeer& peer) {
  if (peer.shook_hands) return true;
  const absl::StatusOr<bool> over = peer.stream->Handshake(peer.socket.get());
  if (!over.ok()) {
    if (peer.incoming) LogRefusal(peer, over.status());
    Fail(peer, over.status());
    return false;
  }
  SendRest(peer);
  peer.shook_hands = *over;
  if (peer.shook_hands && !peer.incoming) Say(peer, tcp_wire::kGreeting);
  return peer.shook_hands;
}

void TcpLoop::SendRest(TcpPeer& peer) {
  if (!peer.failure.ok() || !peer.stream->HasUnsent()) return;
  const absl::StatusOr<uint64_t> sent =
      peer.stream->Write(peer.socket.get(), {});
  if (!sent.ok()) {
    Fail(peer, sent.status());
  } else if (peer.stream->HasUnsent()) {
    peer.full = true;
    Watch(peer);
  }
}

void TcpLoop::Say(TcpPeer& peer, absl::string_view words) {
  const iovec piece = {const_cast<char*>(words.data()), words.size()};
  const absl::StatusOr<uint64_t> said =
      peer.stream->Write(peer.socket.get(), {&piece, 1});
  if (!said.ok() || *said != words.size()) {
    Fail(peer, absl::UnavailableError("the peer hung up"));
    return;
  }
  SendRest(peer);
}

void TcpLoop::TakeGreeting(TcpPeer& peer) {
  const ByteSpan said = absl::MakeConstSpan(peer.buffer).subspan(0, peer.end);
  const absl::Status status = tcp_wire::CheckGreeting(said);
  if (!status.ok()) {
    if (peer.incoming && !peer.encrypted && options_.on_stranger) {
      options_.on_stranger(
          Release(peer),
          std::string(reinterpret_cast<const char*>(said.data()), said.size()));
    }
    Fail(peer, status);
    return;
  }
  if (said.size() < tcp_wire::kGreeting.size()) return;
  peer.begin = tcp_wire::kGreeting.size();
  if (options_.tls.is_required() && !peer.encrypted) {
    RefusePlainText(peer);
    return;
  }
  if (peer.incoming) Say(peer, tcp_wire::kGreeting);
  if (!peer.failure.ok()) return;
  if (peer.encrypted && !options_.tls.is_required()) {
    absl::MutexLock lock(&mu_);
    encrypted_as_wished_.insert(peer.id);
  }
  SetUp(peer);
}

bool TcpLoop::IsEncryptedAsItWished(PeerId peer) const {
  absl::MutexLock lock(&mu_);
  return encrypted_as_wished_.contains(peer);
}

void TcpLoop::RefusePlainText(TcpPeer& peer) {
  Say(peer, tcp_wire::kTlsOnly);
  const absl::Status why = absl::PermissionDeniedError(
      "it speaks plain text, and TLS is required here");
  LogRefusal(peer, why);
  Fail(peer, why);
}

void TcpLoop::LogRefusal(const TcpPeer& peer, const absl::Status& why) {
  LOG_IF(WARNING, refusals_.IsNews(std::string(why.message()),
                                   Clock::Monotonic()->Now()))
      << "kv_transfer: did not let " << peer.address
      << " in: " << why.message();
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
    if (peer.state == PeerState::kDown || !peer.failure.ok()) continue;
    if (peer.stream->HasUnread()) Receive(peer);
    if (peer.failure.ok()) Flush(peer);
  }
}

void TcpLoop::CompleteAll(Peer& down) {
  TcpPeer& peer = Tcp(down);
  {
    absl::MutexLock lock(&mu_);
    encrypted_as_wished_.erase(peer.id);
  }
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
