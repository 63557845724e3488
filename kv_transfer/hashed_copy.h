// Copies bytes and computes their XXH3-64 in one pass: on a copy that waits for
// memory, the hash costs next to nothing. Each byte is read once, so that the
// hash is of what is stored, whatever others do to the source meanwhile.
//
// Which ways there are depends on the CPU, and there may be none
// (kv_transfer/checksum.h copies and hashes anywhere). Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace baton::kv_transfer {

// How what is copied is stored.
enum class Stores {
  // Into the caches: for what fits there.
  kCached,
  // Past them: for what would only push out everything else. Memory is not read
  // before it is overwritten. Not ordered with other stores until
  // FinishStreaming().
  kStreaming,
};

// Copies `n` bytes and returns XXH3_64bits_withSeed of them.
// REQUIRES: CanHashCopy(to, n); no overlap.
using HashedCopy = uint64_t (*)(const std::byte* from, std::byte* to, size_t n,
                                uint64_t seed, Stores stores);

bool CanHashCopy(const std::byte* to, size_t n);

// Those that this CPU has, the fastest first.
absl::Span<const HashedCopy> HashedCopies();

// Before anything that tells another thread of bytes streamed by this one.
void FinishStreaming();

// Writes back what the caches of all CPUs hold of `bytes`, and forgets it
// there: as memory is that nobody has touched for a while. For measurements.
// Nothing where HashedCopies() are none.
void ThrowOutOfCaches(absl::Span<const std::byte> bytes);

}  // namespace baton::kv_transfer
