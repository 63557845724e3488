// Copies by stores that pass the caches by, where the CPU has them: memory that
// is going to be overwritten as a whole is not read first. Elsewhere they are
// ordinary ones. Any thread.
#pragma once

#include <cstddef>

namespace baton::kv_transfer {

// REQUIRES: no overlap.
void StreamingCopy(const std::byte* from, std::byte* to, size_t n);

}  // namespace baton::kv_transfer
