#include "scheduling/block_hash.h"

#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"

namespace baton::scheduling {
namespace {

// Blocks of up to 64 tokens are hashed without an allocation.
using Bytes = absl::InlinedVector<std::byte, 16 + 4 * 64>;

template <typename Word>
void Append(Word word, Bytes* bytes) {
  for (size_t i = 0; i < sizeof(word); ++i) {
    bytes->push_back(static_cast<std::byte>(word >> (8 * i)));
  }
}

}  // namespace

Hash128 ChainStart(absl::string_view salt) {
  return StableHash(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(salt.data()), salt.size()));
}

Hash128 ChainedHash(const Hash128& before, absl::Span<const TokenId> tokens) {
  Bytes bytes;
  bytes.reserve(16 + 4 * tokens.size());
  Append(before.low, &bytes);
  Append(before.high, &bytes);
  for (TokenId token : tokens) Append(static_cast<uint32_t>(token), &bytes);
  return StableHash(bytes);
}

}  // namespace baton::scheduling
