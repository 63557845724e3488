#include "kv_transfer/transports/tcp/tcp_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kv_transfer/byte_order.h"
#include "kv_transfer/transports/mailbox.h"

namespace baton::kv_transfer::tcp_wire {

absl::Status CheckGreeting(ByteSpan said) {
  const auto is = [said](absl::string_view text) {
    const size_t n = std::min(said.size(), text.size());
    return std::memcmp(said.data(), text.data(), n) == 0;
  };
  if (is(kGreeting)) return absl::OkStatus();
  if (is(kTlsOnly)) {
    return absl::FailedPreconditionError(
        "the peer takes KV over TLS only (--kv-encryption)");
  }
  return absl::InvalidArgumentError(
      "the peer speaks another transport protocol");
}

std::string EncodeFrame(absl::string_view header, uint32_t payload_bytes) {
  ByteWriter out;
  out.Put<uint32_t>(header.size());
  out.Put(payload_bytes);
  out.PutBytes(header);
  return std::move(out).Take();
}

absl::StatusOr<FrameLengths> DecodeLengths(ByteSpan bytes) {
  ByteReader in(bytes);
  FrameLengths lengths;
  lengths.header_bytes = in.Get<uint32_t>();
  lengths.payload_bytes = in.Get<uint32_t>();
  if (!in.Finished()) {
    return absl::InvalidArgumentError("the peer sent a malformed frame");
  }
  if (lengths.header_bytes == 0 || lengths.header_bytes > kMaxHeaderBytes ||
      lengths.payload_bytes > kMaxPayloadBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer sent a frame with a header of ", lengths.header_bytes,
        " bytes and a payload of ", lengths.payload_bytes));
  }
  return lengths;
}

}  // namespace baton::kv_transfer::tcp_wire
