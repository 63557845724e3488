// What a full block of a sequence is called wherever prefixes are compared: a
// hash of its tokens and of all tokens before it. Two sequences have the same
// hash at block i when their first i + 1 blocks are the same and their salts
// are; so one hash names a whole prefix.
//
// The same in every process: workers and routers compare them. The hash of
// block i is StableHash of 16 + 4 * n bytes, all little-endian: the hash before
// it (low half, high half), then its n token ids of 4 bytes each. Before block
// 0 stands StableHash of the salt's bytes.
//
// Pure, any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/stable_hash.h"

namespace baton::scheduling {

// Before the first block. Sequences of different salts share nothing.
Hash128 ChainStart(absl::string_view salt);

// Of the block with these tokens, after the block whose hash is `before`.
Hash128 ChainedHash(const Hash128& before, absl::Span<const TokenId> tokens);

// Of all full blocks of these tokens, in order. REQUIRES: block_size >= 1.
std::vector<Hash128> ChainOf(absl::string_view salt, int32_t block_size,
                             absl::Span<const TokenId> tokens);

}  // namespace baton::scheduling
