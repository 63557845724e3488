// Copies of a few KB, into the caches or past them. Any thread.
//
// Stores that pass the caches by, where the CPU has them: memory that is going
// to be overwritten as a whole is not read first, and nothing is pushed out of
// the caches for it. Elsewhere they are ordinary ones.
#pragma once

#include <cstddef>

namespace baton::kv_transfer {

// Copies `n` bytes, by the C library's vector instructions: a compiler that
// sees how small `n` is takes a string instruction, which is far slower here.
// REQUIRES: no overlap.
void CopyCached(const std::byte* from, std::byte* to, size_t n);

// Copies `n` bytes to both `cached` and `streamed`, and reads each of them
// once. REQUIRES: no overlap.
void CopyAndStream(const std::byte* from, std::byte* cached,
                   std::byte* streamed, size_t n);

// Before anything that tells another thread of bytes streamed by this one.
void FinishStreaming();

}  // namespace baton::kv_transfer
