// The blocks and tokens of the tests of the prefix cache. Header only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/ids.h"

namespace baton::scheduling::prefix_cache_test {

inline constexpr int32_t kBlockSize = 4;

using Tokens = std::vector<TokenId>;

// How many blocks so many tokens take.
inline int32_t BlocksFor(size_t tokens) {
  return (static_cast<int32_t>(tokens) + kBlockSize - 1) / kBlockSize;
}

}  // namespace baton::scheduling::prefix_cache_test
