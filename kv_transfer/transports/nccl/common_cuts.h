// Payloads are cut into extents by sender and receiver, each as its memory
// lies. Two-sided posts must be of equal sizes: both sides cut wherever either
// does. Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton::kv_transfer {

// The lengths of spans, in bytes. REQUIRES: none is empty, and each fits.
std::vector<uint32_t> LengthsOf(absl::Span<const absl::Span<std::byte>> spans);

// `spans` in order, cut where one of them ends and where one of `other` ends;
// fewer pieces than both have together. REQUIRES: both have the same number of
// bytes, and none is empty.
std::vector<absl::Span<std::byte>> CutAlike(
    absl::Span<const absl::Span<std::byte>> spans,
    absl::Span<const uint32_t> other);

}  // namespace baton::kv_transfer
