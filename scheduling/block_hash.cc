#include "scheduling/block_hash.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/container/inlined_vector.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

// Blocks of up to 64 tokens are hashed without an allocation.
using Bytes = absl::InlinedVector<std::byte, 16 + 4 * 64>;

template <typename Word>
std::byte* Append(Word word, std::byte* to) {
  if constexpr (std::endian::native == std::endian::little) {
    std::memcpy(to, &word, sizeof(word));
  } else {
    for (size_t i = 0; i < sizeof(word); ++i) {
      to[i] = static_cast<std::byte>(word >> (8 * i));
    }
  }
  return to + sizeof(word);
}

}  // namespace

Hash128 ChainStart(absl::string_view salt) {
  return StableHash(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(salt.data()), salt.size()));
}

Hash128 ChainedHash(const Hash128& before, absl::Span<const TokenId> tokens) {
  Bytes bytes(16 + 4 * tokens.size());
  std::byte* to = Append(before.low, bytes.data());
  to = Append(before.high, to);
  for (TokenId token : tokens) to = Append(static_cast<uint32_t>(token), to);
  return StableHash(bytes);
}

std::vector<Hash128> ChainOf(absl::string_view salt, int32_t block_size,
                             absl::Span<const TokenId> tokens) {
  CHECK_GE(block_size, 1);
  const auto size = static_cast<size_t>(block_size);
  std::vector<Hash128> chain;
  chain.reserve(tokens.size() / size);
  Hash128 hash = ChainStart(salt);
  for (size_t at = 0; at + size <= tokens.size(); at += size) {
    hash = ChainedHash(hash, tokens.subspan(at, size));
    chain.push_back(hash);
  }
  return chain;
}

}  // namespace baton::scheduling
