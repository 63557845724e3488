#include "kv_transfer/region_table.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace baton::kv_transfer {

absl::StatusOr<RegionId> RegionTable::Add(const Region& region) {
  absl::MutexLock lock(&mu_);
  if (regions_.size() >= kMaxRegions) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a transport takes at most ", kMaxRegions, " regions"));
  }
  regions_.push_back(region);
  return RegionId{static_cast<uint32_t>(regions_.size() - 1)};
}

absl::StatusOr<std::vector<absl::Span<std::byte>>> RegionTable::Resolve(
    absl::Span<const Extent> extents) const {
  std::vector<absl::Span<std::byte>> spans;
  spans.reserve(extents.size());
  absl::MutexLock lock(&mu_);
  for (const Extent& extent : extents) {
    const size_t index = static_cast<size_t>(extent.region);
    if (index >= regions_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("extent: no region ", index));
    }
    const absl::Span<std::byte> region = regions_[index].memory;
    if (extent.length == 0 || extent.offset > region.size() ||
        extent.length > region.size() - extent.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "extent: bytes ", extent.offset, "+", extent.length,
          " are not within region ", index, " of ", region.size(), " bytes"));
    }
    spans.push_back(region.subspan(extent.offset, extent.length));
  }
  return spans;
}

std::vector<RegionTable::Region> RegionTable::List() const {
  absl::MutexLock lock(&mu_);
  return regions_;
}

}  // namespace baton::kv_transfer
