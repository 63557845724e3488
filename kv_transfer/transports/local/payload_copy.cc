#include "kv_transfer/transports/local/payload_copy.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::kv_transfer {
namespace {

// Most payloads are smaller: a page that is cut is not copied in one pass.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

PayloadCopy::PayloadCopy(std::vector<ByteSpan> source,
                         std::vector<absl::Span<std::byte>> target)
    : source_(std::move(source)), target_(std::move(target)) {
  uint64_t left = 0;
  for (const ByteSpan& span : source_) left += span.size();
  for (const absl::Span<std::byte>& span : target_) {
    CHECK_LE(span.size(), left) << "a landing larger than its payload";
    left -= span.size();
  }
  CHECK_EQ(left, 0u) << "a landing smaller than its payload";
}

uint64_t PayloadCopy::Advance(
    uint64_t max_bytes,
    absl::FunctionRef<void(ByteSpan from, absl::Span<std::byte> to)> copy) {
  uint64_t copied = 0;
  while (copied < max_bytes && !done()) {
    ByteSpan& from = source_[next_source_];
    absl::Span<std::byte>& to = target_[next_target_];
    const size_t n = std::min({from.size(), to.size(), kPieceBytes});
    copy(from.first(n), to.first(n));
    from.remove_prefix(n);
    to.remove_prefix(n);
    copied += n;
    if (from.empty()) ++next_source_;
    if (to.empty()) ++next_target_;
  }
  return copied;
}

}  // namespace baton::kv_transfer
