// The messages of the data plane, one at a time: those of the hand-off, and
// those that the local and the NCCL transport say beneath it. The first byte
// says which.
#include <utility>
#include <vector>

#include <google/protobuf/stubs/logging.h>

#include "common/log.h"
#include "kv_transfer/page_map.h"
#include "kv_transfer/transports/local/local_wire.h"
#include "kv_transfer/transports/nccl/nccl_wire.h"
#include "kv_transfer/wire.h"
#include "kv_transfer/wire_encoding.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace baton::kv_transfer {
namespace {

// Of strings that are no UTF-8.
[[maybe_unused]] const auto kNoProtobufLog =
    google::protobuf::SetLogHandler(nullptr);

using fuzz::AsBytes;

void FuzzMessage(const std::string& bytes) {
  const auto message = wire::Decode(AsBytes(bytes));
  if (!message.ok()) return;
  // A hello that its sender wrote in an unusual way may be longer in ours.
  if (const auto* hello = std::get_if<v1::PeerHello>(&message->body)) {
    if (hello->ByteSizeLong() > wire::kMaxHelloBytes) return;
  }
  if (const auto* reply = std::get_if<v1::PeerHelloReply>(&message->body)) {
    if (reply->ByteSizeLong() > wire::kMaxHelloBytes) return;
  }
  // What was understood can be said, and is understood the same.
  const std::string said = wire::Encode(*message);
  CHECK_LE(said.size(), wire::kMaxHeaderBytes);
  const auto again = wire::Decode(AsBytes(said));
  CHECK(again.ok()) << again.status();
  CHECK_EQ(again->body.index(), message->body.index());
  CHECK(wire::Encode(*again) == said);
}

uint64_t Sum(const std::vector<Extent>& extents) {
  uint64_t sum = 0;
  for (const Extent& extent : extents) sum += extent.length;
  return sum;
}

void FuzzLocal(const std::string& bytes) {
  const auto datagram = local_wire::Decode(AsBytes(bytes));
  if (!datagram.ok()) return;
  if (const auto* payload = std::get_if<local_wire::Payload>(&*datagram)) {
    CHECK_LE(payload->extents.size(), kMaxPayloadExtents);
    CHECK_EQ(Sum(payload->extents), payload->bytes);
  }
}

void FuzzNccl(const std::string& bytes) {
  const auto message = nccl_wire::Decode(AsBytes(bytes));
  if (!message.ok()) return;
  if (const auto* offer = std::get_if<nccl_wire::Offer>(&*message)) {
    uint64_t sum = 0;
    for (const uint32_t length : offer->lengths) sum += length;
    CHECK_EQ(sum, offer->bytes);
    CHECK(nccl_wire::EncodeOffer(
              offer->number, offer->lengths,
              absl::string_view(
                  reinterpret_cast<const char*>(offer->header.data()),
                  offer->header.size()))
              .size() == bytes.size());
  }
}

// Pages in another form: any bytes give a page.
void FuzzPage(const std::string& bytes) {
  KvGeometry kv;
  kv.num_layers = 1;
  kv.num_blocks = 1;
  kv.sections = {{.rows = 1, .unit_bytes = 64}, {.rows = 2, .unit_bytes = 32}};
  kv.bf16 = true;
  kv.page_bytes = 128;
  kv.layer_stride_bytes = kv.page_bytes;
  const PageShape shape = {.block_size = 16, .first_head = 0, .num_heads = 1};
  const auto map = PageMap::Create(kv, shape, shape);
  CHECK(map.ok()) << map.status();
  for (const WireEncoding encoding :
       {WireEncoding::kInt8, WireEncoding::kFp8}) {
    std::string encoded = bytes;
    encoded.resize(EncodedPageBytes(*map, encoding));
    std::vector<std::byte> page(map->page_bytes());
    DecodePage(*map, encoding, AsBytes(encoded), absl::MakeSpan(page));
    std::vector<std::byte> again(encoded.size());
    EncodePage(*map, encoding, page, absl::MakeSpan(again));
  }
}

}  // namespace
}  // namespace baton::kv_transfer

FUZZ_TARGET(wire)(const uint8_t* data, size_t size) {
  baton::fuzz::FuzzInput input(data, size);
  const uint8_t kind = input.Byte();
  const std::string bytes = baton::fuzz::Exactly(input.Rest());
  switch (kind % 5) {
    case 0:
      baton::kv_transfer::FuzzMessage(bytes);
      break;
    case 1:
      baton::kv_transfer::FuzzLocal(bytes);
      break;
    case 2: {
      const auto offer = baton::kv_transfer::local_wire::DecodeOffer(
          baton::fuzz::AsBytes(bytes));
      if (offer.ok()) {
        // Reserved fields are written as zero.
        CHECK_EQ(baton::kv_transfer::local_wire::EncodeOffer(*offer).size(),
                 bytes.size());
      }
      break;
    }
    case 3:
      baton::kv_transfer::FuzzNccl(bytes);
      break;
    case 4:
      baton::kv_transfer::FuzzPage(bytes);
      break;
  }
  return 0;
}
