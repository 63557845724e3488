// What goes over a connection of the TCP transport (docs/wire_format.md): a
// greeting in each direction, then frames. Numbers are little-endian.
//
// Pure; any thread. Decoding trusts nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer::tcp_wire {

// Names the protocol and its version. The side that connected says it first.
inline constexpr absl::string_view kGreeting = "baton kv tcp 1\n";

// What a side that listens says to who greets in plain text where it takes TLS
// alone.
inline constexpr absl::string_view kTlsOnly = "baton kv tcp tls\n";

// The first of a frame: the lengths of the header, 1 to kMaxHeaderBytes, and of
// the payload, 0 to kMaxPayloadBytes, which follow it.
struct FrameLengths {
  uint32_t header_bytes = 0;
  uint32_t payload_bytes = 0;
};
inline constexpr size_t kLengthsBytes = 8;

// InvalidArgument unless `said`, the first bytes of a peer, can become a
// greeting; FailedPrecondition when it can become kTlsOnly.
absl::Status CheckGreeting(ByteSpan said);

// A frame but for its payload.
std::string EncodeFrame(absl::string_view header, uint32_t payload_bytes);

// `bytes`: kLengthsBytes of them. InvalidArgument says what is out of bounds.
absl::StatusOr<FrameLengths> DecodeLengths(ByteSpan bytes);

}  // namespace baton::kv_transfer::tcp_wire
