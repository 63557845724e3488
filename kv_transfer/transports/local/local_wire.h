// The datagrams of a local connection, to and from bytes (docs/wire_format.md).
// Pure functions, any thread. Decoding trusts nothing: any bytes whatever give
// a datagram or an error.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/mailbox.h"

namespace baton::kv_transfer::local_wire {

// The first datagram of each side. Each region comes with a descriptor, in the
// same order.
struct OfferedRegion {
  RegionId id{};
  uint64_t length = 0;
};
using Offer = std::vector<OfferedRegion>;

// A message, without payload.
struct Message {
  ByteSpan header;
};
// A message whose payload lies in these extents of the sender's regions.
struct Payload {
  ByteSpan header;
  std::vector<Extent> extents;
  uint64_t bytes = 0;  // of all extents
};
// The memory of the `count` oldest payloads is not read any more.
struct Done {
  uint32_t count = 0;
};
using Datagram = std::variant<Message, Payload, Done>;

inline constexpr size_t kMaxDatagramBytes =
    16 + kMaxPayloadExtents * 24 + kMaxHeaderBytes;

std::string EncodeOffer(const Offer& offer);
std::string EncodeMessage(absl::string_view header);
std::string EncodePayload(absl::string_view header,
                          absl::Span<const Extent> extents);
std::string EncodeDone(uint32_t count);

// InvalidArgument says what is wrong. What is decoded points into `bytes`.
absl::StatusOr<Offer> DecodeOffer(ByteSpan bytes);
absl::StatusOr<Datagram> Decode(ByteSpan bytes);

}  // namespace baton::kv_transfer::local_wire
