#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/log.h"
#include "kv_transfer/transports/tcp/tcp_loop.h"
#include "kv_transfer/transports/tcp/tcp_wire.h"

namespace baton::kv_transfer {
namespace {

// Between two looks at other sockets, the mail and the clock.
constexpr uint64_t kBytesPerTurn = uint64_t{2} << 20;
// The buffer holds hundreds of the smallest messages.
constexpr int kReadsPerTurn = 64;
// The extents of a payload, and what comes before or after them.
constexpr size_t kMaxPieces = kMaxPayloadExtents + 1;

// Takes `bytes` from the front of spans[*next, ...).
template <typename Span>
void DropFront(std::vector<Span>& spans, size_t* next, uint64_t bytes) {
  while (bytes > 0) {
    Span& span = spans[*next];
    const uint64_t n = std::min<uint64_t>(bytes, span.size());
    span.remove_prefix(n);
    bytes -= n;
    if (span.empty()) ++*next;
  }
}

}  // namespace

void TcpLoop::Queue(Peer& to, SendOp op) {
  TcpPeer& peer = Tcp(to);
  (op.payload.empty() ? peer.messages : peer.payloads).push_back(std::move(op));
  // A message waits for the end of the turn: more of them may follow.
  if (peer.payloads.empty()) {
    MarkBusy(peer);
  } else {
    Flush(peer);
  }
}

void TcpLoop::Flush(TcpPeer& peer) {
  uint64_t written = 0;
  // Also when the handler sends again and again within one call.
  while (peer.failure.ok() && !peer.full && written < kBytesPerTurn &&
         peer.written.size() < options_.max_sends_in_flight) {
    if (!peer.writing.has_value() && !TakeNext(peer)) break;
    written += Write(peer);
    Writing& writing = *peer.writing;
    if (writing.next < writing.rest.size()) continue;
    Written(peer, writing.cookie);
    peer.writing.reset();
  }
  if (!peer.full && (peer.writing.has_value() || !peer.messages.empty() ||
                     !peer.payloads.empty())) {
    MarkBusy(peer);
  }
}

bool TcpLoop::TakeNext(TcpPeer& peer) {
  std::deque<SendOp>& queue =
      peer.messages.empty() ? peer.payloads : peer.messages;
  if (queue.empty()) return false;
  const SendOp op = std::move(queue.front());
  queue.pop_front();
  auto spans = regions_->Resolve(op.payload);
  CHECK(spans.ok()) << spans.status();
  uint64_t payload_bytes = 0;
  for (const absl::Span<std::byte>& span : *spans) payload_bytes += span.size();
  Writing& writing = peer.writing.emplace(Writing());
  writing.cookie = op.cookie;
  writing.frame =
      tcp_wire::EncodeFrame(op.header, static_cast<uint32_t>(payload_bytes));
  writing.rest.reserve(spans->size() + 1);
  writing.rest.emplace_back(
      reinterpret_cast<const std::byte*>(writing.frame.data()),
      writing.frame.size());
  writing.rest.insert(writing.rest.end(), spans->begin(), spans->end());
  return true;
}

uint64_t TcpLoop::Write(TcpPeer& peer) {
  Writing& writing = *peer.writing;
  std::array<iovec, kMaxPieces> pieces;
  size_t count = 0;
  uint64_t wanted = 0;
  for (size_t i = writing.next;
       i < writing.rest.size() && wanted < kBytesPerTurn; ++i) {
    const ByteSpan span = writing.rest[i].subspan(0, kBytesPerTurn - wanted);
    pieces[count++] = {const_cast<std::byte*>(span.data()), span.size()};
    wanted += span.size();
  }
  const absl::StatusOr<uint64_t> taken =
      peer.stream->Write(peer.socket.get(), {pieces.data(), count});
  if (!taken.ok()) {
    Fail(peer, taken.status());
    return 0;
  }
  DropFront(writing.rest, &writing.next, *taken);
  if (*taken < wanted || peer.stream->HasUnsent()) {
    peer.full = true;
    Watch(peer);
  }
  return *taken;
}

void TcpLoop::Receive(TcpPeer& peer) {
  uint64_t received = 0;
  for (int i = 0;
       i < kReadsPerTurn && peer.failure.ok() && received < kBytesPerTurn;
       ++i) {
    uint64_t read = 0;
    const bool more = Read(peer, kBytesPerTurn - received, &read);
    received += read;
    if (read > 0) TakeBuffered(peer);
    if (!more) break;
  }
  if (!peer.failure.ok()) return;
  SendRest(peer);
  // The socket would not tell.
  if (peer.stream->HasUnread()) MarkBusy(peer);
}

bool TcpLoop::Read(TcpPeer& peer, uint64_t max_bytes, uint64_t* read) {
  const int socket = peer.socket.get();
  uint64_t left = peer.reading.has_value() ? peer.reading->bytes_left : 0;
  uint64_t wanted = 0;
  absl::StatusOr<uint64_t> n = 0;
  if (left > 0 && !peer.reading->cookie.has_value()) {
    // Refused.
    wanted = std::min(left, max_bytes);
    n = peer.stream->Skip(socket, wanted);
  } else {
    // The rest of a payload to its place, and what follows to the buffer.
    if (peer.begin > 0) {
      std::copy(peer.buffer.begin() + static_cast<ptrdiff_t>(peer.begin),
                peer.buffer.begin() + static_cast<ptrdiff_t>(peer.end),
                peer.buffer.begin());
      peer.end -= peer.begin;
      peer.begin = 0;
    }
    std::array<iovec, kMaxPieces> pieces;
    size_t count = 0;
    if (left > 0) {
      const Reading& reading = *peer.reading;
      for (size_t i = reading.next;
           i < reading.rest.size() && wanted < max_bytes; ++i) {
        const uint64_t bytes =
            std::min<uint64_t>(reading.rest[i].size(), max_bytes - wanted);
        pieces[count++] = {reading.rest[i].data(), bytes};
        wanted += bytes;
      }
    }
    if (wanted == left) {
      const uint64_t room = peer.buffer.size() - peer.end;
      pieces[count++] = {peer.buffer.data() + peer.end, room};
      wanted += room;
    }
    n = peer.stream->Read(socket, {pieces.data(), count});
  }
  if (!n.ok()) {
    Fail(peer, n.status());
    return false;
  }
  *read = *n;
  const uint64_t of_payload = std::min(left, *read);
  peer.end += *read - of_payload;
  if (of_payload > 0) Advance(peer, of_payload);
  return *read == wanted;
}

void TcpLoop::TakeBuffered(TcpPeer& peer) {
  if (peer.state == PeerState::kConnecting) TakeGreeting(peer);
  if (peer.state != PeerState::kUp) return;
  while (peer.failure.ok() && TakeFrame(peer)) {
  }
}

bool TcpLoop::TakeFrame(TcpPeer& peer) {
  if (peer.reading.has_value()) return false;
  const ByteSpan bytes = absl::MakeConstSpan(peer.buffer)
                             .subspan(peer.begin, peer.end - peer.begin);
  if (bytes.size() < tcp_wire::kLengthsBytes) return false;
  const absl::StatusOr<tcp_wire::FrameLengths> lengths =
      tcp_wire::DecodeLengths(bytes.first(tcp_wire::kLengthsBytes));
  if (!lengths.ok()) {
    Fail(peer, lengths.status());
    return false;
  }
  const size_t head = tcp_wire::kLengthsBytes + lengths->header_bytes;
  if (bytes.size() < head) return false;
  const ByteSpan header =
      bytes.subspan(tcp_wire::kLengthsBytes, lengths->header_bytes);
  peer.begin += head;
  if (lengths->payload_bytes == 0) {
    handler_->OnMessage(peer.id, header);
    return true;
  }
  BeginPayload(peer, header, lengths->payload_bytes);
  // What of it is there already.
  const uint64_t there =
      std::min<uint64_t>(peer.end - peer.begin, lengths->payload_bytes);
  const std::byte* from = peer.buffer.data() + peer.begin;
  Reading& reading = *peer.reading;
  if (reading.cookie.has_value()) {
    uint64_t copied = 0;
    for (size_t i = 0; copied < there; ++i) {
      const uint64_t n =
          std::min<uint64_t>(reading.rest[i].size(), there - copied);
      std::memcpy(reading.rest[i].data(), from + copied, n);
      copied += n;
    }
  }
  peer.begin += there;
  Advance(peer, there);
  return true;
}

void TcpLoop::BeginPayload(TcpPeer& peer, ByteSpan header,
                           uint64_t payload_bytes) {
  const std::optional<Landing> landing =
      handler_->OnPayload(peer.id, header, payload_bytes);
  Reading& reading = peer.reading.emplace(Reading());
  reading.bytes_left = payload_bytes;
  if (!landing.has_value()) return;
  CHECK_LE(landing->extents.size(), kMaxPayloadExtents);
  auto target = regions_->Resolve(landing->extents);
  CHECK(target.ok()) << target.status();
  uint64_t bytes = 0;
  for (const absl::Span<std::byte>& span : *target) bytes += span.size();
  CHECK_EQ(bytes, payload_bytes) << "a landing that is not its payload's size";
  reading.rest = *std::move(target);
  reading.cookie = landing->cookie;
}

void TcpLoop::Advance(TcpPeer& peer, uint64_t bytes) {
  Reading& reading = *peer.reading;
  reading.bytes_left -= bytes;
  if (reading.cookie.has_value()) {
    DropFront(reading.rest, &reading.next, bytes);
  }
  if (reading.bytes_left > 0) return;
  const std::optional<uint64_t> cookie = reading.cookie;
  peer.reading.reset();
  if (cookie.has_value()) {
    handler_->OnLanded(peer.id, *cookie, absl::OkStatus());
  }
}

}  // namespace baton::kv_transfer
