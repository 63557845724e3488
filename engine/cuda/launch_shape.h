// How many blocks and threads a kernel runs with. Plain values.
#pragma once

#include <cstdint>

namespace baton::engine::cuda {

struct LaunchShape {
  // Blocks; y and z at most 65,535.
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  uint32_t threads = 0;      // of a block, a multiple of 32
  int64_t shared_bytes = 0;  // of the block's memory
};

}  // namespace baton::engine::cuda
