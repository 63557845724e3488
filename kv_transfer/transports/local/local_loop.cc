#include "kv_transfer/transports/local/local_loop.h"

#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "kv_transfer/transports/local/faster_stores.h"
#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/local/local_wire.h"
#include "kv_transfer/transports/socket_address.h"

namespace baton::kv_transfer {
namespace {

// Larger messages cost less each; smaller ones are still in the caches when
// they are hashed. Measured: docs/performance.md.
constexpr uint64_t kGoodLocalPayloadBytes = uint64_t{512} << 10;

}  // namespace

LocalLoop::LocalLoop(const LocalOptions& options, Mailbox* mailbox,
                     const RegionTable* regions)
    : SocketLoop(options.connect_timeout, options.tick_interval, mailbox),
      options_(options),
      regions_(regions),
      // Only who listens is sent payloads.
      faster_stores_(options.listen ? FasterStores() : Stores::kCached),
      // One byte more each, so that a datagram that is too long shows.
      buffer_(kDatagramsPerBatch * (local_wire::kMaxDatagramBytes + 1)) {}

absl::Status LocalLoop::Open(TransportProperties* properties) {
  BATON_RETURN_IF_ERROR(OpenEvents());
  if (options_.listen) BATON_RETURN_IF_ERROR(OpenListener(properties));
  properties->name = "local/memfd";
  properties->detects_peer_death = true;
  properties->shares_memory = true;
  properties->good_payload_bytes = kGoodLocalPayloadBytes;
  SetLimits(options_.max_sends_in_flight, options_.max_sends_outstanding,
            properties);
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
      SetListener(*std::move(listener));
      return absl::OkStatus();
    }
    status = listener.status();
  }
  return status;
}

absl::StatusOr<std::string> LocalLoop::Welcome(int socket,
                                               const sockaddr_storage& from) {
  BATON_ASSIGN_OR_RETURN(const pid_t process, CheckedPeerProcess(socket));
  return absl::StrCat("process ", process);
}

void LocalLoop::BeginConnect(Peer& peer, const SocketAddress& to) {
  absl::StatusOr<ScopedFd> socket =
      ConnectLocally(FormatSocketAddress(to.storage));
  if (!socket.ok()) {
    Fail(peer, socket.status());
    return;
  }
  peer.socket = *std::move(socket);
  Watch(peer);
  SendOffer(Local(peer));
}

void LocalLoop::OnWritable(Peer& peer) {
  FlushDone(Local(peer));
  FlushOutbox(Local(peer));
}

void LocalLoop::Work() {
  FlushOwed();
  CopySome();
}

void LocalLoop::CompleteAll(Peer& down) {
  LocalPeer& peer = Local(down);
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
