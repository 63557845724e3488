#include "kv_transfer/checksum.h"

#include <xxhash.h>

namespace baton::kv_transfer {

uint64_t PageChecksum(ByteSpan page, uint32_t layer, uint32_t index) {
  const uint64_t seed = (uint64_t{layer} << 32) | index;
  return XXH3_64bits_withSeed(page.data(), page.size(), seed);
}

}  // namespace baton::kv_transfer
