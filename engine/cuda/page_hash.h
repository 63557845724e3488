// XXH3-64 of KV pages in a device's memory, which the CPU cannot read: the sums
// by which a hand-off checks what came (kv_transfer/checksum.h), to the bit as
// xxHash's library computes them. A warp hashes a page.
//
// Pure host code but for RunPageHash, which gives the kernel to a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

// Stripes of XXH3; what pages and their runs are multiples of.
inline constexpr int64_t kHashStripeBytes = 64;
// Shorter inputs are hashed in other ways.
inline constexpr int64_t kShortestHashedPage = 256;

// Bytes that lie together, aligned to 16.
struct HashRun {
  const std::byte* data = nullptr;
  int64_t bytes = 0;
};

struct PageHashArgs {
  // Of all pages, one after another: those of page p are
  // [first_run[p], first_run[p + 1]).
  const HashRun* runs = nullptr;
  const int32_t* first_run = nullptr;
  int32_t pages = 0;
  int64_t page_bytes = 0;
  // Of page p: first_seed + p.
  uint64_t first_seed = 0;
  uint64_t* hashes = nullptr;  // [pages]
};

// REQUIRES: pages > 0; the runs of each are page_bytes together, as stated
// above.
void RunPageHash(const PageHashArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
