// The headers of the messages between prefill and decode workers, to and from
// bytes (docs/wire_format.md). Pure functions, any thread. Decoding trusts
// nothing: any bytes whatever give a message or an error.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "baton/v1/peer.pb.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer::wire {

inline constexpr uint32_t kMagic = 0x314e5442;  // "BTN1" on the wire
inline constexpr uint8_t kVersion = 2;
inline constexpr uint64_t kPrefixBytes = 24;
// Most bytes of a serialized PeerHello or PeerHelloReply.
inline constexpr uint64_t kMaxHelloBytes = 3072;
inline constexpr uint64_t kMaxHeaderBytes = kPrefixBytes + 4 + kMaxHelloBytes;

// Comes with a payload: wire pages of one layer, in order
// (kv_transfer/page_map.h).
struct Kv {
  TransferId transfer{};
  uint32_t generation = 0;
  PageRun pages;
  WireEncoding encoding = WireEncoding::kExact;
};

// All was sent: this is what there must be.
struct Commit {
  TransferId transfer{};
  uint32_t generation = 0;
  uint32_t num_layers = 0;
  uint32_t num_pages = 0;  // of each layer
  WireEncoding encoding = WireEncoding::kExact;
  uint64_t total_bytes = 0;
  uint64_t checksum = 0;  // kv_transfer/checksum.h
  CommitRecord record;
};

// The receiver's word on a commit.
struct CommitAck {
  TransferId transfer{};
  uint32_t generation = 0;
  TransferOutcome outcome{};
};

// Either side ends the transfer. Answered with AbortAck, also when unknown.
struct Abort {
  TransferId transfer{};
  uint32_t generation = 0;
  TransferOutcome reason{};
};

// The one who answers sends and takes nothing of this transfer any more.
struct AbortAck {
  TransferId transfer{};
  uint32_t generation = 0;
};

// From the sender of KV, with or without a payload that means nothing: how fast
// is the link? (kv_transfer/link_probe.h) `probe` is the sender's: which
// measurement of this link.
struct Probe {
  uint64_t probe = 0;
  uint32_t sequence = 0;
};

// The answer to Probe, when its payload is there.
struct ProbeReply {
  uint64_t probe = 0;
  uint32_t sequence = 0;
};

using Body = std::variant<v1::PeerHello, v1::PeerHelloReply, Kv, Commit,
                          CommitAck, Abort, AbortAck, Probe, ProbeReply>;

struct Message {
  Incarnation from{};
  // 0 in a PeerHello, whose sender does not know it yet.
  Incarnation to{};
  Body body;
};

// REQUIRES: a hello of at most kMaxHelloBytes.
std::string Encode(const Message& message);

// InvalidArgument says what is wrong with the bytes. Hellos are decoded
// whatever their version, so that the fingerprints can name it.
absl::StatusOr<Message> Decode(ByteSpan header);

}  // namespace baton::kv_transfer::wire
