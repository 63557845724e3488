#include "kv_transfer/transports/local/peer_memory.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace baton::kv_transfer {

absl::StatusOr<PeerMemory> PeerMemory::Map(const local_wire::Offer& offer,
                                           const std::vector<ScopedFd>& files) {
  if (offer.size() != files.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer offered ", offer.size(), " regions and sent ",
                     files.size(), " descriptors"));
  }
  PeerMemory out;
  for (size_t i = 0; i < offer.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(
        SharedMemoryView view,
        SharedMemoryView::Open(files[i].get(), offer[i].length));
    if (!out.regions_.try_emplace(offer[i].id, std::move(view)).second) {
      return absl::InvalidArgumentError("the peer offered a region twice");
    }
  }
  return out;
}

absl::StatusOr<std::vector<ByteSpan>> PeerMemory::Resolve(
    absl::Span<const Extent> extents) const {
  std::vector<ByteSpan> spans;
  spans.reserve(extents.size());
  for (const Extent& extent : extents) {
    auto it = regions_.find(extent.region);
    if (it == regions_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the peer named region ", static_cast<uint32_t>(extent.region),
          ", which it did not offer"));
    }
    const ByteSpan region = it->second.memory();
    if (extent.length == 0 || extent.offset > region.size() ||
        extent.length > region.size() - extent.offset) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the peer named bytes ", extent.offset, "+", extent.length,
          " of a region of ", region.size(), " bytes"));
    }
    spans.push_back(region.subspan(extent.offset, extent.length));
  }
  return spans;
}

}  // namespace baton::kv_transfer
