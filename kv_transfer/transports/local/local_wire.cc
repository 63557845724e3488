#include "kv_transfer/transports/local/local_wire.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kv_transfer/byte_order.h"
#include "kv_transfer/region_table.h"

namespace baton::kv_transfer::local_wire {
namespace {

// Names the protocol and its version: whoever says other words is no transport
// of Baton, or another version of it.
constexpr absl::string_view kWords = "baton kv local 1";

enum class Type : uint32_t { kMessage = 1, kPayload = 2, kDone = 3 };

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the peer sent a malformed datagram: ", what));
}

bool IsHeaderLength(uint64_t bytes) {
  return bytes >= 1 && bytes <= kMaxHeaderBytes;
}

}  // namespace

std::string EncodeOffer(const Offer& offer) {
  ByteWriter out;
  out.PutBytes(kWords);
  out.Put<uint32_t>(offer.size());
  out.Put<uint32_t>(0);
  for (const OfferedRegion& region : offer) {
    out.PutEnum(region.id);
    out.Put<uint32_t>(0);
    out.Put(region.length);
  }
  return std::move(out).Take();
}

std::string EncodeMessage(absl::string_view header) {
  ByteWriter out;
  out.PutEnum(Type::kMessage);
  out.Put<uint32_t>(header.size());
  out.PutBytes(header);
  return std::move(out).Take();
}

std::string EncodePayload(absl::string_view header,
                          absl::Span<const Extent> extents) {
  ByteWriter out;
  out.PutEnum(Type::kPayload);
  out.Put<uint32_t>(header.size());
  out.Put<uint32_t>(extents.size());
  out.Put<uint32_t>(0);
  for (const Extent& extent : extents) {
    out.PutEnum(extent.region);
    out.Put<uint32_t>(0);
    out.Put(extent.offset);
    out.Put(extent.length);
  }
  out.PutBytes(header);
  return std::move(out).Take();
}

std::string EncodeDone(uint32_t count) {
  ByteWriter out;
  out.PutEnum(Type::kDone);
  out.Put(count);
  return std::move(out).Take();
}

absl::StatusOr<Offer> DecodeOffer(ByteSpan bytes) {
  ByteReader in(bytes);
  const ByteSpan words = in.GetBytes(kWords.size());
  if (words.size() != kWords.size() ||
      std::memcmp(words.data(), kWords.data(), kWords.size()) != 0) {
    return absl::InvalidArgumentError(
        "the peer speaks another transport protocol");
  }
  const auto count = in.Get<uint32_t>();
  in.Get<uint32_t>();
  if (count > RegionTable::kMaxRegions) {
    return Malformed(absl::StrCat("an offer of ", count, " regions"));
  }
  Offer offer;
  for (uint32_t i = 0; i < count; ++i) {
    OfferedRegion region;
    region.id = in.GetEnum<RegionId>();
    in.Get<uint32_t>();
    region.length = in.Get<uint64_t>();
    offer.push_back(region);
  }
  if (!in.Finished()) return Malformed("the length of an offer");
  return offer;
}

absl::StatusOr<Datagram> Decode(ByteSpan bytes) {
  ByteReader in(bytes);
  const auto type = in.GetEnum<Type>();
  // Of the header, or of payloads done.
  const auto count = in.Get<uint32_t>();
  if (!in.ok()) return Malformed("too short");
  switch (type) {
    case Type::kMessage: {
      const Message message{in.GetBytes(count)};
      if (!IsHeaderLength(count) || !in.Finished()) {
        return Malformed("the length of a message");
      }
      return message;
    }
    case Type::kPayload: {
      Payload payload;
      const auto num_extents = in.Get<uint32_t>();
      in.Get<uint32_t>();
      if (num_extents == 0 || num_extents > kMaxPayloadExtents) {
        return Malformed(
            absl::StrCat("a payload of ", num_extents, " extents"));
      }
      for (uint32_t i = 0; i < num_extents; ++i) {
        Extent extent;
        extent.region = in.GetEnum<RegionId>();
        in.Get<uint32_t>();
        extent.offset = in.Get<uint64_t>();
        extent.length = in.Get<uint64_t>();
        // So that the sum cannot overflow.
        if (extent.length == 0 || extent.length > kMaxPayloadBytes) {
          return Malformed(
              absl::StrCat("an extent of ", extent.length, " bytes"));
        }
        payload.bytes += extent.length;
        payload.extents.push_back(extent);
      }
      payload.header = in.GetBytes(count);
      if (!IsHeaderLength(count) || !in.Finished()) {
        return Malformed("the length of a payload's header");
      }
      if (payload.bytes > kMaxPayloadBytes) {
        return Malformed(
            absl::StrCat("a payload of ", payload.bytes, " bytes"));
      }
      return payload;
    }
    case Type::kDone:
      if (count == 0 || !in.Finished()) return Malformed("done");
      return Done{count};
  }
  return Malformed(absl::StrCat("type ", static_cast<uint32_t>(type)));
}

}  // namespace baton::kv_transfer::local_wire
