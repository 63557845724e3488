#include "kv_transfer/checksum.h"

#include <xxhash.h>
#ifdef BATON_XXH_DISPATCH
// The same sums, with the widest instructions that this CPU has.
#include <xxh_x86dispatch.h>
#endif

#include <cstddef>

namespace baton::kv_transfer {

uint64_t PageChecksum(ByteSpan page, uint32_t layer, uint32_t index) {
  const uint64_t seed = (uint64_t{layer} << 32) | index;
  return XXH3_64bits_withSeed(page.data(), page.size(), seed);
}

uint64_t RecordChecksum(const CommitRecord& record) {
  // No page has this seed: layers are fewer.
  constexpr uint64_t kSeed = ~uint64_t{0};
  const uint32_t words[] = {static_cast<uint32_t>(record.first_token),
                            record.next_token_index, record.num_tokens};
  uint8_t bytes[sizeof(words)];
  for (size_t i = 0; i < sizeof(bytes); ++i) {
    bytes[i] = static_cast<uint8_t>(words[i / 4] >> (8 * (i % 4)));
  }
  return XXH3_64bits_withSeed(bytes, sizeof(bytes), kSeed);
}

}  // namespace baton::kv_transfer
