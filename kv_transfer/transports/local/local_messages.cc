#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "kv_transfer/transports/local/local_loop.h"
#include "kv_transfer/transports/local/local_socket.h"
#include "kv_transfer/transports/local/local_wire.h"

namespace baton::kv_transfer {
namespace {

// Between two looks at the sockets, the mail and the clock.
constexpr uint64_t kCopyBytesPerTurn = uint64_t{1} << 20;
// What comes after so much at a stretch does not go through the caches: that is
// faster, as memory is not read before it is overwritten, and leaves them to
// others. A little KV may be there still when it is first read, unless it takes
// much longer to put it there.
constexpr uint64_t kCachedBytesInARow = uint64_t{16} << 20;
constexpr int kBatchesPerTurn = 4;
// Payloads of one peer that are offered to the handler in one turn.
constexpr int kOffersPerTurn = 64;
// Payloads done that a peer is told of even when there is more to copy: some of
// what it usually has on the wire, because to wake it takes as long as copying
// half a payload.
constexpr uint32_t kDoneBatch = 16;

}  // namespace

void LocalLoop::SendOffer(LocalPeer& peer) {
  local_wire::Offer offer;
  std::vector<int> descriptors;
  const std::vector<RegionTable::Region> regions = regions_->List();
  for (uint32_t i = 0; i < regions.size(); ++i) {
    if (regions[i].descriptor == kNoDescriptor) continue;
    offer.push_back({RegionId{i}, regions[i].memory.size()});
    descriptors.push_back(regions[i].descriptor);
  }
  const absl::StatusOr<bool> sent = SendDatagram(
      peer.socket.get(), local_wire::EncodeOffer(offer), descriptors);
  if (!sent.ok()) {
    Fail(peer, sent.status());
  } else if (!*sent) {
    Fail(peer, absl::UnavailableError("there is no room for an offer"));
  }
}

void LocalLoop::Queue(Peer& to, SendOp op) {
  LocalPeer& peer = Local(to);
  // Messages without payload are few and small: they do not wait behind a full
  // window.
  if (op.payload.empty()) {
    StartSend(peer, op);
    return;
  }
  peer.queue.push_back(std::move(op));
  StartQueued(peer);
}

void LocalLoop::StartQueued(LocalPeer& peer) {
  while (peer.failure.ok() && !peer.queue.empty() &&
         peer.on_wire.size() < options_.max_sends_in_flight) {
    const SendOp next = std::move(peer.queue.front());
    peer.queue.pop_front();
    StartSend(peer, next);
  }
}

void LocalLoop::StartSend(LocalPeer& peer, const SendOp& op) {
  const bool has_payload = !op.payload.empty();
  Outgoing outgoing;
  outgoing.datagram = has_payload
                          ? local_wire::EncodePayload(op.header, op.payload)
                          : local_wire::EncodeMessage(op.header);
  outgoing.cookie = op.cookie;
  outgoing.has_payload = has_payload;
  if (has_payload) peer.on_wire.push_back(op.cookie);
  peer.outbox.push_back(std::move(outgoing));
  FlushOutbox(peer);
}

void LocalLoop::FlushOutbox(LocalPeer& peer) {
  while (peer.failure.ok() && !peer.outbox.empty()) {
    if (!Write(peer, peer.outbox.front().datagram)) return;
    const Outgoing& written = peer.outbox.front();
    if (!written.has_payload) Written(peer, written.cookie);
    peer.outbox.pop_front();
  }
}

bool LocalLoop::Write(LocalPeer& peer, absl::string_view datagram) {
  if (peer.full || !peer.failure.ok()) return false;
  const absl::StatusOr<bool> sent = SendDatagram(peer.socket.get(), datagram);
  if (!sent.ok()) {
    Fail(peer, sent.status());
    return false;
  }
  if (!*sent) {
    peer.full = true;
    Watch(peer);
  }
  return *sent;
}

void LocalLoop::Receive(LocalPeer& peer) {
  if (peer.state == PeerState::kConnecting) {
    ReceiveOffer(peer);
    if (peer.state == PeerState::kConnecting) return;
  }
  for (int turn = 0; turn < kBatchesPerTurn && peer.failure.ok(); ++turn) {
    std::array<size_t, kDatagramsPerBatch> sizes;
    const absl::StatusOr<size_t> count = ReceiveDatagrams(
        peer.socket.get(), absl::MakeSpan(buffer_), absl::MakeSpan(sizes));
    if (!count.ok()) {
      Fail(peer, count.status());
      return;
    }
    const size_t room = buffer_.size() / sizes.size();
    for (size_t i = 0; i < *count && peer.failure.ok(); ++i) {
      TakeDatagram(peer,
                   absl::MakeConstSpan(buffer_).subspan(i * room, sizes[i]));
    }
    if (*count < sizes.size()) return;
  }
}

void LocalLoop::ReceiveOffer(LocalPeer& peer) {
  std::vector<ScopedFd> files;
  const absl::StatusOr<std::optional<size_t>> size = ReceiveDatagram(
      peer.socket.get(),
      absl::MakeSpan(buffer_).first(buffer_.size() / kDatagramsPerBatch),
      &files);
  if (!size.ok()) {
    Fail(peer, size.status());
  } else if (size->has_value()) {
    TakeOffer(peer, absl::MakeConstSpan(buffer_).first(**size), files);
  }
}

void LocalLoop::TakeOffer(LocalPeer& peer, ByteSpan bytes,
                          const std::vector<ScopedFd>& files) {
  const absl::StatusOr<local_wire::Offer> offer =
      local_wire::DecodeOffer(bytes);
  if (!offer.ok()) {
    Fail(peer, offer.status());
    return;
  }
  absl::StatusOr<PeerMemory> memory = PeerMemory::Map(*offer, files);
  if (!memory.ok()) {
    Fail(peer, memory.status());
    return;
  }
  peer.memory = *std::move(memory);
  if (peer.incoming) SendOffer(peer);
  if (!peer.failure.ok()) return;
  SetUp(peer);
}

void LocalLoop::TakeDatagram(LocalPeer& peer, ByteSpan bytes) {
  const absl::StatusOr<local_wire::Datagram> datagram =
      local_wire::Decode(bytes);
  if (!datagram.ok()) {
    Fail(peer, datagram.status());
  } else if (auto* message = std::get_if<local_wire::Message>(&*datagram)) {
    handler_->OnMessage(peer.id, message->header);
  } else if (auto* done = std::get_if<local_wire::Done>(&*datagram)) {
    TakeDone(peer, done->count);
  } else {
    const auto& payload = std::get<local_wire::Payload>(*datagram);
    absl::StatusOr<std::vector<ByteSpan>> source =
        peer.memory.Resolve(payload.extents);
    if (!source.ok()) {
      Fail(peer, source.status());
      return;
    }
    if (peer.waiting.size() >= kMaxPayloadsWaiting) {
      Fail(peer, absl::ResourceExhaustedError(
                     "the peer sent more payloads than may wait"));
      return;
    }
    peer.waiting.push_back(
        {std::string(reinterpret_cast<const char*>(payload.header.data()),
                     payload.header.size()),
         *std::move(source), payload.bytes});
    if (!peer.copying) {
      peer.copying = true;
      copying_.push_back(peer.id);
    }
  }
}

void LocalLoop::TakeDone(LocalPeer& peer, uint32_t count) {
  if (count > peer.on_wire.size()) {
    Fail(peer, absl::InvalidArgumentError(
                   "the peer is done with more than it was sent"));
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t cookie = peer.on_wire.front();
    peer.on_wire.pop_front();
    FinishSend(peer, cookie, absl::OkStatus());
  }
  StartQueued(peer);
}

void LocalLoop::CopySome() {
  if (copying_.empty()) return;
  const PeerId id = copying_.front();
  copying_.pop_front();
  LocalPeer* const peer = FindLocal(id);
  if (peer == nullptr) return;
  peer->copying = false;
  uint64_t copied = 0;
  for (int i = 0; i < kOffersPerTurn && copied < kCopyBytesPerTurn; ++i) {
    if (!peer->failure.ok()) return;
    if (!peer->copy.has_value() && peer->waiting.empty()) break;
    if (!peer->copy.has_value() && !BeginCopy(*peer)) continue;
    copied += Advance(*peer, kCopyBytesPerTurn - copied);
    if (!peer->copy->payload.done()) continue;
    const uint64_t cookie = peer->copy->cookie;
    peer->copy.reset();
    OweDone(*peer);
    handler_->OnLanded(peer->id, cookie, absl::OkStatus());
  }
  copied_in_a_row_ += copied;
  if (peer->copy.has_value() || !peer->waiting.empty()) {
    peer->copying = true;
    copying_.push_back(id);
  }
}

bool LocalLoop::BeginCopy(LocalPeer& peer) {
  Incoming incoming = std::move(peer.waiting.front());
  peer.waiting.pop_front();
  const ByteSpan header(
      reinterpret_cast<const std::byte*>(incoming.header.data()),
      incoming.header.size());
  const std::optional<Landing> landing =
      handler_->OnPayload(peer.id, header, incoming.bytes);
  if (!landing.has_value()) {
    OweDone(peer);  // dropped, nothing was touched
    return false;
  }
  CHECK_LE(landing->extents.size(), kMaxPayloadExtents);
  auto target = regions_->Resolve(landing->extents);
  CHECK(target.ok()) << target.status();
  peer.copy = Copy{PayloadCopy(std::move(incoming.source), *std::move(target)),
                   landing->cookie};
  return true;
}

uint64_t LocalLoop::Advance(LocalPeer& peer, uint64_t max_bytes) {
  const uint64_t cookie = peer.copy->cookie;
  const Stores stores = copied_in_a_row_ < kCachedBytesInARow
                            ? faster_stores_
                            : Stores::kStreaming;
  return peer.copy->payload.Advance(
      max_bytes, [&](ByteSpan from, absl::Span<std::byte> to) {
        handler_->CopyLanding(peer.id, cookie, from, to, stores);
      });
}

void LocalLoop::OweDone(LocalPeer& peer) {
  if (++peer.done_owed >= kDoneBatch) {
    FlushDone(peer);
  } else if (!peer.owed) {
    peer.owed = true;
    owed_.push_back(peer.id);
  }
}

void LocalLoop::FlushDone(LocalPeer& peer) {
  if (peer.done_owed == 0) return;
  if (Write(peer, local_wire::EncodeDone(peer.done_owed))) peer.done_owed = 0;
}

void LocalLoop::FlushOwed() {
  std::erase_if(owed_, [this](PeerId id) {
    LocalPeer* const peer = FindLocal(id);
    if (peer == nullptr) return true;
    if (peer->copying) return false;  // more is done soon
    peer->owed = false;
    FlushDone(*peer);
    return true;
  });
}

}  // namespace baton::kv_transfer
