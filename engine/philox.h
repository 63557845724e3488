// Philox4x32-10, a counter-based random generator: the draw is a pure function
// of a counter and a key, so that it does not matter who draws, when, or what
// was drawn before. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011. Pure; any thread. Not for secrets.
#pragma once

#include <array>
#include <cstdint>

namespace baton::engine {

inline std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter,
                                          std::array<uint32_t, 2> key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

// A uniform value in [0, 1) with 53 random bits for draw `index` of `seed`.
inline double UniformDraw(uint64_t seed, uint64_t index) {
  const std::array<uint32_t, 4> bits = Philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0},
      {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t wide = uint64_t{bits[1]} << 32 | bits[0];
  return static_cast<double>(wide >> 11) * 0x1p-53;
}

}  // namespace baton::engine
