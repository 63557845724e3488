// How this CPU copies and hashes faster: some write to memory past the caches
// at nearly twice the speed at which they write into them, on others it is the
// other way round (docs/adr/0015-memory-by-descriptor.md).
#pragma once

#include "kv_transfer/hashed_copy.h"

namespace baton::kv_transfer {

// Streaming only if that is much faster: what is left in the caches may be read
// there soon. Measured when it is first asked for, which takes a few
// milliseconds; the same answer from then on. Any thread.
Stores FasterStores();

}  // namespace baton::kv_transfer
