// Pages of one layer as extents of the region that holds KV memory. Pages that
// lie next to each other share an extent: fewer, longer copies. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// REQUIRES: layer and blocks in range of `kv`.
std::vector<Extent> PageExtents(const KvGeometry& kv, RegionId region,
                                uint32_t layer,
                                absl::Span<const BlockId> blocks);

// The sum of PageChecksum over the pages of `blocks`, the first of which has
// index `first_index` in its transfer.
uint64_t PagesChecksum(const KvGeometry& kv, uint32_t layer,
                       uint32_t first_index, absl::Span<const BlockId> blocks);

// Most pages in one message, so that it fits `properties` and is about as large
// as transports like it.
// REQUIRES: a page fits one payload.
uint32_t MaxPagesPerMessage(const KvGeometry& kv,
                            const TransportProperties& properties);

}  // namespace baton::kv_transfer
