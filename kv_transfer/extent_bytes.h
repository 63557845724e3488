// The bytes of extents of KV memory as one run: read, written and hashed. Any
// thread that may touch those pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kv_transfer/checksum.h"
#include "kv_transfer/handoff.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// Adds them all, in order, read by whoever can.
void AddExtents(const KvGeometry& kv, absl::Span<const Extent> extents,
                PagesChecksum* checksum);

// Bytes [from, from + out.size()) of the run. REQUIRES: it is that long.
void ReadExtents(absl::Span<const std::byte> memory,
                 absl::Span<const Extent> extents, uint64_t from,
                 absl::Span<std::byte> out);
void WriteExtents(absl::Span<std::byte> memory,
                  absl::Span<const Extent> extents, uint64_t from, ByteSpan in);

// The first `bytes` bytes of the run. REQUIRES: it is that long.
std::vector<Extent> FirstBytes(absl::Span<const Extent> extents,
                               uint64_t bytes);

}  // namespace baton::kv_transfer
