// Puts another number into a hash. Fixed for ever: digests of runs and the
// answers of the simulated model are made of it.
#pragma once

#include <cstdint>

namespace baton::sim {

constexpr uint64_t Mix(uint64_t hash, uint64_t value) {
  hash ^= value + 0x9e3779b97f4a7c15;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93;
  hash ^= hash >> 32;
  hash *= 0xd6e8feb86659fd93;
  hash ^= hash >> 29;
  return hash;
}

}  // namespace baton::sim
