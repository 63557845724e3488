// The memory of one peer that we may read: what it offered when it connected,
// and the only way from a peer's extent to bytes. The peer is not trusted: its
// files and extents are checked. Once mapped, the bytes stay readable whatever
// becomes of the peer, until this is destroyed.
//
// One thread at a time.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scoped_fd.h"
#include "common/shared_memory.h"
#include "kv_transfer/transport.h"
#include "kv_transfer/transports/local/local_wire.h"

namespace baton::kv_transfer {

class PeerMemory final {
 public:
  // Nothing can be read.
  PeerMemory() = default;
  // Maps what was offered. InvalidArgument: files and offer do not fit each
  // other, or a file could be shortened under us; others as mmap(2).
  static absl::StatusOr<PeerMemory> Map(const local_wire::Offer& offer,
                                        const std::vector<ScopedFd>& files);

  // One span per extent; InvalidArgument for one that is not within a region.
  absl::StatusOr<std::vector<ByteSpan>> Resolve(
      absl::Span<const Extent> extents) const;

 private:
  absl::flat_hash_map<RegionId, SharedMemoryView> regions_;
};

}  // namespace baton::kv_transfer
