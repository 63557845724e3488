// Moves bytes of registered memory between two processes. A transport knows
// regions, extents and peers; it knows no layer, no block and no request. The
// seam exists so that the hand-off runs unchanged over UCX, over a fake that
// injects faults, and later over NCCL.
//
// The receiver decides where bytes land: a payload is announced with a small
// header, the handler answers with extents of its own memory or refuses, and
// refused bytes touch nothing. A sender's completion proves nothing about
// delivery; who needs proof asks the other side for an acknowledgement.
//
// Threads: every function may be called from any thread, none blocks on a peer,
// and none but Stop() calls the handler itself. The handler is called on the
// transport's progress threads; there may be several, but calls never overlap,
// and each sees what those before it did. Stop() and RegisterRegion() must not
// be called on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kv_transfer/hashed_copy.h"

namespace baton::kv_transfer {

// Memory given to one transport with RegisterRegion.
enum class RegionId : uint32_t {};

// In place of a descriptor where there is none.
inline constexpr int kNoDescriptor = -1;

// One connection. Never reused: a peer that died and came back is another one.
enum class PeerId : uint64_t {};

// `length` bytes of a region, from byte `offset` on.
struct Extent {
  RegionId region{};
  uint64_t offset = 0;
  uint64_t length = 0;
};

using ByteSpan = absl::Span<const std::byte>;

// The bytes of `text`, where they lie.
inline ByteSpan AsBytes(const std::string& text) {
  return ByteSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}

// Constant after construction.
struct TransportProperties {
  // "ucx/tcp", "local/memfd"; for logs and metrics.
  std::string name;
  // "host:port" that peers connect to; empty when not listening.
  std::string address;
  // Whether a killed peer is noticed without traffic from us. Never true for a
  // stopped or unreachable one: deadlines are for those.
  bool detects_peer_death = false;
  // Whether one end reads the other's memory: no wire, and only memory with a
  // descriptor can be sent.
  bool shares_memory = false;
  uint64_t max_header_bytes = 0;
  uint64_t max_payload_bytes = 0;
  // About how large payloads should be for most bytes per second.
  uint64_t good_payload_bytes = 0;
  // Whether payloads of one extent are so much faster than others that smaller
  // ones are better.
  bool prefers_runs = false;
  // Most extents in one payload, on either side.
  uint32_t max_payload_extents = 0;
  // Most sends on the wire per peer; further ones queue inside.
  uint32_t max_sends_in_flight = 0;
  // Most sends not yet completed per peer, on the wire and queued together.
  uint32_t max_sends_outstanding = 0;
};

// Where a payload lands: extents of registered regions whose lengths add up to
// the payload, in order, and a cookie that comes back in OnLanded.
struct Landing {
  std::vector<Extent> extents;
  uint64_t cookie = 0;
};

// What the user of a transport implements. All calls come on progress threads,
// one at a time, and must not block (but PageHasher). A handler may call Send,
// Connect, ClosePeer and Wake.
//
// Order per peer: OnPeerUp (absent when the connection never came up), then
// messages and payloads in any order, then OnPeerDown exactly once. After
// OnPeerDown nothing new starts, but what was outstanding still completes:
// every accepted Send has exactly one OnSent and every accepted payload exactly
// one OnLanded. Until its OnLanded, the transport may write to a landing's
// extents; afterwards it never does.
class TransportHandler {
 public:
  virtual ~TransportHandler() = default;

  // `address` is the one given to Connect, or for a peer that connected to us
  // where it came from (for logs).
  virtual void OnPeerUp(PeerId peer, const std::string& address) = 0;
  virtual void OnPeerDown(PeerId peer, const absl::Status& why) = 0;

  // A message without payload. `header` is valid during the call only.
  virtual void OnMessage(PeerId peer, ByteSpan header) = 0;

  // A message with `payload_bytes` > 0 of payload. Nothing refuses it: its
  // bytes are dropped, and the sender sees an ordinary completion.
  virtual std::optional<Landing> OnPayload(PeerId peer, ByteSpan header,
                                           uint64_t payload_bytes) = 0;

  // Copies `from`, the next bytes of a landing, in order, from its first on, to
  // `to`, where they land, and reads each of them once: their owner may change
  // them. Only transports that copy call it; what is to be done with the bytes
  // can then be done in the same pass. A transport that begins to call it for a
  // landing does so for all of its bytes, before OnLanded. `stores` is advice.
  virtual void CopyLanding(PeerId peer, uint64_t cookie, ByteSpan from,
                           absl::Span<std::byte> to, Stores stores) {
    std::memcpy(to.data(), from.data(), to.size());
  }

  // All bytes of a landing are there, or (not OK) none may be trusted.
  virtual void OnLanded(PeerId peer, uint64_t cookie,
                        const absl::Status& status) = 0;

  // The memory of a send may be changed or freed. OK does not prove delivery.
  virtual void OnSent(PeerId peer, uint64_t cookie,
                      const absl::Status& status) = 0;

  // Called a few dozen times a second, and soon after Wake().
  virtual void OnTick() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;

  virtual const TransportProperties& properties() const = 0;

  // Those of what `peer` is connected by, for a transport that chooses among
  // others; properties() when there is no such peer. The reference lives as
  // long as the transport.
  virtual const TransportProperties& PeerProperties(PeerId peer) const {
    return properties();
  }

  // Makes `memory` usable in extents, until Stop() has returned; it must
  // outlive that. `descriptor`: a file that is this memory from its first byte
  // on (common/shared_memory.h), or kNoDescriptor; transports by which peers
  // read our memory themselves send payloads from no other.
  // ResourceExhausted beyond a few regions. FailedPrecondition after Start, for
  // a transport that tells peers of its regions when they connect.
  virtual absl::StatusOr<RegionId> RegisterRegion(absl::Span<std::byte> memory,
                                                  int descriptor) = 0;

  // Begins to accept peers and to call `handler`, which must outlive Stop().
  // REQUIRES: called once, before Connect and Send.
  virtual void Start(TransportHandler* handler) = 0;

  // Closes all peers by force, completes everything outstanding with an error
  // (the handler hears of it), and ends the progress thread. No call to the
  // handler comes after. Idempotent; the destructor does the same.
  virtual void Stop() = 0;

  // Begins to connect to `address`, whose host is numeric: resolving names may
  // block, and nothing here does. OnPeerUp or OnPeerDown follows.
  // InvalidArgument: malformed address. ResourceExhausted: too many peers.
  virtual absl::StatusOr<PeerId> Connect(const std::string& address) = 0;

  // Sends `header` (copied; not empty) and the bytes of `payload` (may be
  // empty; not copied: unchanged until OnSent(cookie)). OK means OnSent follows
  // exactly once. InvalidArgument: a size or an extent out of bounds.
  // FailedPrecondition: the peer is not up yet, or cannot read that region.
  // Unavailable: it is down.
  // ResourceExhausted: max_sends_outstanding reached.
  virtual absl::Status Send(PeerId peer, ByteSpan header,
                            absl::Span<const Extent> payload,
                            uint64_t cookie) = 0;

  // Closes by force: OnPeerDown follows, all outstanding sends and landings
  // complete with an error. No-op for a peer that is down or unknown.
  virtual void ClosePeer(PeerId peer) = 0;

  // Has the progress thread call OnTick soon.
  virtual void Wake() = 0;

  // In OnTick: whether all progress threads have called it since this was last
  // true. Always, where there is one.
  virtual bool AllTicked() { return true; }
};

}  // namespace baton::kv_transfer
