// The 16 values that weights in 4 bits can have, by a scale and a zero point:
// 64 neighbouring inputs of an output share such a grid. Plain values.
#pragma once

#include <cstdint>
#include <cstring>

namespace baton::engine {

// Inputs of an output that share a grid.
inline constexpr int32_t kInt4GroupInputs = 64;

// weight = (q - zero) * scale, with q and zero of [0, 15]. A scale that is no
// positive, normal number of bfloat16 stands for no grid.
struct Int4Grid {
  float scale = 0.0f;
  int32_t zero = 0;
};

// A grid is kept as 16 bits, beside a power of two for all of its output:
//   bits 0-3 zero, 4-10 m, 11-15 e; scale = output scale * 2^(e-31) (1 + m/128)
// so scales are bfloat16, and those of an output may be 2^31 apart.
constexpr int32_t Int4Zero(uint16_t code) { return code & 15; }
// Without that of the output.
inline float Int4Scale(uint16_t code) {
  const uint32_t bits = static_cast<uint32_t>(code >> 4) << 16 | uint32_t{96}
                                                                     << 23;
  float scale = 0.0f;
  std::memcpy(&scale, &bits, sizeof(scale));
  return scale;
}

}  // namespace baton::engine
