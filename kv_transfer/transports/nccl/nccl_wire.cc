#include "kv_transfer/transports/nccl/nccl_wire.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kv_transfer/byte_order.h"
#include "kv_transfer/transports/nccl/communicator.h"

namespace baton::kv_transfer::nccl_wire {
namespace {

// Names the protocol and its version, in the first message of a connection.
constexpr absl::string_view kWords = "baton kv nccl 1\n";

enum class Type : uint32_t {
  kJoin = 1,
  kReady = 2,
  kMessage = 3,
  kOffer = 4,
  kRefuse = 5,
  kAccept = 6,
  kTurn = 7,
};

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer sent a malformed nccl message: ", what));
}

void PutLengths(ByteWriter& out, const Lengths& lengths) {
  for (uint32_t length : lengths) out.Put(length);
}

// Reads `count` lengths, and adds them up.
absl::Status GetLengths(ByteReader& in, uint32_t count, Lengths& lengths,
                        uint64_t& bytes) {
  if (count == 0 || count > kMaxExtents) {
    return Malformed(absl::StrCat("a payload of ", count, " extents"));
  }
  for (uint32_t i = 0; i < count; ++i) {
    const auto length = in.Get<uint32_t>();
    if (!in.ok()) return Malformed("the lengths of extents");
    if (length == 0) return Malformed("an extent of 0 bytes");
    bytes += length;
    lengths.push_back(length);
  }
  if (bytes > kMaxPayloadBytes) {
    return Malformed(absl::StrCat("a payload of ", bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Any> DecodeJoin(ByteReader& in, uint32_t count) {
  const ByteSpan words = in.GetBytes(kWords.size());
  if (words.size() != kWords.size() ||
      std::memcmp(words.data(), kWords.data(), kWords.size()) != 0) {
    return absl::InvalidArgumentError(
        "the peer speaks another transport protocol");
  }
  if (count == 0 || count > kMaxUniqueIdBytes) {
    return Malformed(absl::StrCat("a unique id of ", count, " bytes"));
  }
  const Join join{in.GetBytes(count)};
  if (!in.Finished()) return Malformed("the length of a unique id");
  return join;
}

absl::StatusOr<Any> DecodeOffer(ByteReader& in, uint32_t count) {
  Offer offer;
  offer.number = in.Get<uint64_t>();
  const absl::Status lengths =
      GetLengths(in, count, offer.lengths, offer.bytes);
  if (!lengths.ok()) return lengths;
  offer.header = in.rest();
  if (offer.header.empty()) return Malformed("an offer without a header");
  return offer;
}

absl::StatusOr<Any> DecodeAccept(ByteReader& in, uint32_t count) {
  Accept accept;
  accept.number = in.Get<uint64_t>();
  accept.turn = in.Get<uint64_t>();
  const absl::Status lengths =
      GetLengths(in, count, accept.lengths, accept.bytes);
  if (!lengths.ok()) return lengths;
  if (!in.Finished()) return Malformed("the length of an accept");
  return accept;
}

}  // namespace

std::string EncodeJoin(absl::string_view unique_id) {
  ByteWriter out;
  out.PutEnum(Type::kJoin);
  out.Put<uint32_t>(unique_id.size());
  out.PutBytes(kWords);
  out.PutBytes(unique_id);
  return std::move(out).Take();
}

std::string EncodeReady() {
  ByteWriter out;
  out.PutEnum(Type::kReady);
  out.Put<uint32_t>(0);
  return std::move(out).Take();
}

std::string EncodeMessage(absl::string_view header) {
  ByteWriter out;
  out.PutEnum(Type::kMessage);
  out.Put<uint32_t>(0);
  out.PutBytes(header);
  return std::move(out).Take();
}

std::string EncodeOffer(uint64_t number, const Lengths& lengths,
                        absl::string_view header) {
  ByteWriter out;
  out.PutEnum(Type::kOffer);
  out.Put<uint32_t>(lengths.size());
  out.Put(number);
  PutLengths(out, lengths);
  out.PutBytes(header);
  return std::move(out).Take();
}

std::string EncodeRefuse(uint64_t number) {
  ByteWriter out;
  out.PutEnum(Type::kRefuse);
  out.Put<uint32_t>(0);
  out.Put(number);
  return std::move(out).Take();
}

std::string EncodeAccept(uint64_t number, uint64_t turn,
                         const Lengths& lengths) {
  ByteWriter out;
  out.PutEnum(Type::kAccept);
  out.Put<uint32_t>(lengths.size());
  out.Put(number);
  out.Put(turn);
  PutLengths(out, lengths);
  return std::move(out).Take();
}

std::string EncodeTurn(uint64_t number, uint64_t turn) {
  ByteWriter out;
  out.PutEnum(Type::kTurn);
  out.Put<uint32_t>(0);
  out.Put(number);
  out.Put(turn);
  return std::move(out).Take();
}

absl::StatusOr<Any> Decode(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto type = in.GetEnum<Type>();
  // Of extents, or bytes of the unique id; the others ignore it.
  const auto count = in.Get<uint32_t>();
  if (!in.ok()) return Malformed("too short");
  switch (type) {
    case Type::kJoin:
      return DecodeJoin(in, count);
    case Type::kReady:
      if (!in.Finished()) return Malformed("ready");
      return Ready{};
    case Type::kMessage:
      if (in.rest().empty()) return Malformed("a message without a header");
      return Message{in.rest()};
    case Type::kOffer:
      return DecodeOffer(in, count);
    case Type::kRefuse: {
      const Refuse refuse{in.Get<uint64_t>()};
      if (!in.Finished()) return Malformed("the length of a refusal");
      return refuse;
    }
    case Type::kAccept:
      return DecodeAccept(in, count);
    case Type::kTurn: {
      Turn turn;
      turn.number = in.Get<uint64_t>();
      turn.turn = in.Get<uint64_t>();
      if (!in.Finished()) return Malformed("the length of a turn");
      return turn;
    }
  }
  return Malformed(absl::StrCat("type ", static_cast<uint32_t>(type)));
}

}  // namespace baton::kv_transfer::nccl_wire
