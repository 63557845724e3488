// What two NCCL transports say to each other over the control transport, to and
// from bytes (docs/wire_format.md). Pure functions, any thread. Decoding trusts
// nothing: any bytes whatever give a message or an error.
//
// Sends are numbered from 1 by their sender; turns, the order in which both
// sides post, from 1 by rank 0.
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

namespace baton::kv_transfer::nccl_wire {

// How a payload is cut into extents: their lengths, in order.
using Lengths = std::vector<uint32_t>;

// From rank 0: join this communicator.
struct Join {
  ByteSpan unique_id;
};
// The communicator is ready here.
struct Ready {};
// A message of the user, without payload.
struct Message {
  ByteSpan header;
};
// A message of the user, with a payload to be accepted or refused.
struct Offer {
  uint64_t number = 0;
  Lengths lengths;
  uint64_t bytes = 0;  // of all extents
  ByteSpan header;
};
// Nothing is posted for this number; forget it.
struct Refuse {
  uint64_t number = 0;
};
// The payload is wanted, cut like this. From rank 0 with its turn, from rank 1
// with turn 0: rank 0 answers with Turn.
struct Accept {
  uint64_t number = 0;
  uint64_t turn = 0;
  Lengths lengths;
  uint64_t bytes = 0;  // of all extents
};
// From rank 0: the turn of its own send `number`, which rank 1 accepted.
struct Turn {
  uint64_t number = 0;
  uint64_t turn = 0;
};
using Any = std::variant<Join, Ready, Message, Offer, Refuse, Accept, Turn>;

// Most extents of a payload, on either side. More than other transports have,
// as a message costs more here: the pages of 8 MB that lie apart, or 21
// pages of nine pieces each (unequal block sizes). As many as leave room for a
// hello.
inline constexpr uint32_t kMaxExtents = 192;
// What a message or an offer adds to its user's header, at most.
inline constexpr size_t kMaxOverheadBytes = 16 + kMaxExtents * 4;

std::string EncodeJoin(absl::string_view unique_id);
std::string EncodeReady();
std::string EncodeMessage(absl::string_view header);
std::string EncodeOffer(uint64_t number, const Lengths& lengths,
                        absl::string_view header);
std::string EncodeRefuse(uint64_t number);
std::string EncodeAccept(uint64_t number, uint64_t turn,
                         const Lengths& lengths);
std::string EncodeTurn(uint64_t number, uint64_t turn);

// InvalidArgument says what is wrong. What is decoded points into `bytes`.
absl::StatusOr<Any> Decode(ByteSpan bytes);

}  // namespace baton::kv_transfer::nccl_wire
