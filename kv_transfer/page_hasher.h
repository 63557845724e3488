// Hashes KV pages where the CPU cannot read them, in the memory of a device.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// So many stall timeouts (HandoffOptions) pass before a peer is closed with
// which nothing has gone from device to device yet: the transport may have to
// connect them first.
inline constexpr int kFirstPayloadPatience = 10;

class PageHasher {
 public:
  // What pages and their runs are multiples of, and at least have.
  static constexpr int64_t kStripeBytes = 64;
  static constexpr int64_t kShortestPage = 256;

  virtual ~PageHasher() = default;

  // XXH3-64 of the pages of `page_bytes` that lie in `runs`, one after another:
  // of page i with the seed first_seed + i. Called on progress threads, from
  // within their handlers, which it may hold up for as long as a device takes:
  // some tens of microseconds, hundreds with pages of hundreds of kilobytes.
  // REQUIRES: whole pages, of sizes as above.
  virtual std::vector<uint64_t> HashPages(absl::Span<const ByteSpan> runs,
                                          int64_t page_bytes,
                                          uint64_t first_seed) = 0;
};

}  // namespace baton::kv_transfer
