#include "kv_transfer/page_extents.h"

#include <algorithm>

#include "common/log.h"
#include "kv_transfer/checksum.h"

namespace baton::kv_transfer {

std::vector<Extent> PageExtents(const KvGeometry& kv, RegionId region,
                                uint32_t layer,
                                absl::Span<const BlockId> blocks) {
  const uint64_t page_bytes = kv.page_bytes;
  std::vector<Extent> extents;
  extents.reserve(blocks.size());
  for (BlockId block : blocks) {
    const uint64_t offset = kv.PageOffset(layer, block);
    if (!extents.empty() &&
        extents.back().offset + extents.back().length == offset) {
      extents.back().length += page_bytes;
    } else {
      extents.push_back({region, offset, page_bytes});
    }
  }
  return extents;
}

uint64_t PagesChecksum(const KvGeometry& kv, uint32_t layer,
                       uint32_t first_index, absl::Span<const BlockId> blocks) {
  uint64_t sum = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const ByteSpan page =
        kv.memory.subspan(kv.PageOffset(layer, blocks[i]), kv.page_bytes);
    sum += PageChecksum(page, layer, first_index + static_cast<uint32_t>(i));
  }
  return sum;
}

uint32_t MaxPagesPerMessage(const KvGeometry& kv,
                            const TransportProperties& properties) {
  const uint64_t page_bytes = kv.page_bytes;
  CHECK_LE(page_bytes, properties.max_payload_bytes);
  const uint64_t budget =
      std::min(properties.good_payload_bytes, properties.max_payload_bytes);
  const uint64_t pages = std::max<uint64_t>(1, budget / page_bytes);
  return static_cast<uint32_t>(
      std::min<uint64_t>(pages, properties.max_payload_extents));
}

}  // namespace baton::kv_transfer
