#include "kv_transfer/transports/nccl/common_cuts.h"

#include <algorithm>
#include <limits>

#include "common/log.h"

namespace baton::kv_transfer {

std::vector<uint32_t> LengthsOf(absl::Span<const absl::Span<std::byte>> spans) {
  std::vector<uint32_t> lengths;
  lengths.reserve(spans.size());
  for (absl::Span<std::byte> span : spans) {
    CHECK(!span.empty());
    CHECK_LE(span.size(), std::numeric_limits<uint32_t>::max());
    lengths.push_back(static_cast<uint32_t>(span.size()));
  }
  return lengths;
}

std::vector<absl::Span<std::byte>> CutAlike(
    absl::Span<const absl::Span<std::byte>> spans,
    absl::Span<const uint32_t> other) {
  std::vector<absl::Span<std::byte>> pieces;
  pieces.reserve(spans.size() + other.size());
  size_t next = 0;
  // What is left of other[next].
  size_t left = 0;
  for (absl::Span<std::byte> span : spans) {
    CHECK(!span.empty());
    while (!span.empty()) {
      if (left == 0) {
        CHECK_LT(next, other.size()) << "the cuts are shorter than the payload";
        left = other[next++];
        CHECK_GT(left, 0u);
      }
      const size_t n = std::min(span.size(), left);
      pieces.push_back(span.first(n));
      span.remove_prefix(n);
      left -= n;
    }
  }
  CHECK(left == 0 && next == other.size())
      << "the cuts are longer than the payload";
  return pieces;
}

}  // namespace baton::kv_transfer
