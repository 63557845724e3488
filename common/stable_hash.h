// A hash of bytes that is the same in every process, on every machine and in
// every release (XXH3-128): processes may tell each other its values. It keeps
// different things apart, but stops no attacker who looks for two that collide.
//
// Pure, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/types/span.h"

namespace baton {

struct Hash128 {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash128& hash) {
    return H::combine(std::move(state), hash.high, hash.low);
  }
};

Hash128 StableHash(absl::Span<const std::byte> bytes);

}  // namespace baton
