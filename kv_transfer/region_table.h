// The memory that a transport may read and write, and the only way from an
// extent to a pointer. Any thread. Regions are never removed: their memory
// outlives the transport's Stop().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class RegionTable final {
 public:
  static constexpr size_t kMaxRegions = 16;

  struct Region {
    absl::Span<std::byte> memory;
    // As in Transport::RegisterRegion.
    int descriptor = kNoDescriptor;
  };

  absl::StatusOr<RegionId> Add(const Region& region) ABSL_LOCKS_EXCLUDED(mu_);

  // One span per extent; InvalidArgument for an empty one and for one that is
  // not within its region.
  absl::StatusOr<std::vector<absl::Span<std::byte>>> Resolve(
      absl::Span<const Extent> extents) const ABSL_LOCKS_EXCLUDED(mu_);

  // All of them; a region's id is its index.
  std::vector<Region> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::vector<Region> regions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::kv_transfer
