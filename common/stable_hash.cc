#include "common/stable_hash.h"

#include <xxhash.h>

namespace baton {

Hash128 StableHash(absl::Span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {.high = hash.high64, .low = hash.low64};
}

}  // namespace baton
