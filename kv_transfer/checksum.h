// The checksum of a transfer: the sum, modulo 2^64, of XXH3-64 of each page,
// seeded with where the page belongs, and of the commit record. Pages may come
// in any order, and a page in the wrong place changes the sum. Guards against
// broken hardware and our own bugs, not against an attacker. Any thread.
#pragma once

#include <cstdint>

#include "kv_transfer/handoff.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// What one page adds to the sum. `index` counts within the transfer's blocks.
uint64_t PageChecksum(ByteSpan page, uint32_t layer, uint32_t index);

// What the commit record adds to the sum.
uint64_t RecordChecksum(const CommitRecord& record);

}  // namespace baton::kv_transfer
