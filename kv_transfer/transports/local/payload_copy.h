// One payload on its way from a peer's memory to its landing: cuts it into
// pieces that lie in one run of bytes on both sides.
//
// One thread at a time; both memories outlive it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

class PayloadCopy final {
 public:
  // REQUIRES: both add up to the same number of bytes.
  PayloadCopy(std::vector<ByteSpan> source,
              std::vector<absl::Span<std::byte>> target);

  // Calls `copy` with each piece of the next `max_bytes`, in order, or of what
  // is left, or up to one piece in excess. Returns how many bytes it were.
  uint64_t Advance(
      uint64_t max_bytes,
      absl::FunctionRef<void(ByteSpan from, absl::Span<std::byte> to)> copy);

  bool done() const { return next_source_ == source_.size(); }

 private:
  // What is left: pieces are cut off at the front.
  std::vector<ByteSpan> source_;
  std::vector<absl::Span<std::byte>> target_;
  size_t next_source_ = 0;
  size_t next_target_ = 0;
};

}  // namespace baton::kv_transfer
