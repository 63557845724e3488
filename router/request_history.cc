#include "router/request_history.h"

#include <utility>

namespace baton::router {
namespace {

// An id is kept twice; a slot of the map is a string, a number and a byte.
constexpr size_t kSlotBytes = sizeof(std::string) + sizeof(uint64_t) + 1;

}  // namespace

size_t EndedRequest::ByteSize() const {
  return sizeof(EndedRequest) + kSlotBytes + 2 * id.capacity() +
         trace_id.capacity() + error.capacity() + adapter.capacity() +
         placements.ByteSize() + usage.SpaceUsedLong() - sizeof(usage) +
         timing.SpaceUsedLong() - sizeof(timing);
}

void RequestHistory::Add(EndedRequest request) {
  newest_[request.id] = dropped_ + ring_.size();
  bytes_ += request.ByteSize();
  ring_.push_back(std::move(request));
  while (!ring_.empty() && (ring_.size() > options_.max_requests ||
                            bytes_ > options_.max_bytes)) {
    DropOldest();
  }
}

void RequestHistory::DropOldest() {
  const EndedRequest& oldest = ring_.front();
  const auto it = newest_.find(oldest.id);
  // A newer one of the same id stays known.
  if (it != newest_.end() && it->second == dropped_) newest_.erase(it);
  bytes_ -= oldest.ByteSize();
  ring_.pop_front();
  ++dropped_;
}

const EndedRequest* RequestHistory::Find(absl::string_view id) const {
  const auto it = newest_.find(id);
  return it == newest_.end() ? nullptr : &ring_[it->second - dropped_];
}

}  // namespace baton::router
