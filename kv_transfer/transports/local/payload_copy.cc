#include "kv_transfer/transports/local/payload_copy.h"

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "kv_transfer/transports/local/piece_copy.h"

namespace baton::kv_transfer {
namespace {

// A piece, and a copy of it, stay in the nearest caches; smaller ones pay more
// for being shown than they gain. Measured:
// docs/adr/0015-memory-by-descriptor.md.
constexpr size_t kPieceBytes = size_t{24} << 10;

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

uint64_t PayloadCopy::Advance(uint64_t max_bytes, Stores stores,
                              absl::FunctionRef<void(ByteSpan)> show) {
  alignas(64) std::byte scratch[kPieceBytes];
  uint64_t copied = 0;
  while (copied < max_bytes && !done()) {
    ByteSpan& from = source_[next_source_];
    absl::Span<std::byte>& to = target_[next_target_];
    const size_t n = std::min({from.size(), to.size(), kPieceBytes});
    switch (stores) {
      case Stores::kCached:
        CopyCached(from.data(), to.data(), n);
        show(to.first(n));
        break;
      case Stores::kStreaming:
        CopyAndStream(from.data(), scratch, to.data(), n);
        show(absl::MakeConstSpan(scratch).first(n));
        break;
    }
    from.remove_prefix(n);
    to.remove_prefix(n);
    copied += n;
    if (from.empty()) ++next_source_;
    if (to.empty()) ++next_target_;
  }
  if (stores == Stores::kStreaming) FinishStreaming();
  return copied;
}

}  // namespace baton::kv_transfer
