// How many blocks and threads a kernel runs with. Plain values.
#pragma once

#include <cstdint>

namespace baton::engine::cuda {

// What every device with clusters takes.
inline constexpr uint32_t kMaxCluster = 8;

struct LaunchShape {
  // Blocks; y and z at most 65,535.
  uint32_t x = 1;
  uint32_t y = 1;
  uint32_t z = 1;
  uint32_t threads = 0;      // of a block, a multiple of 32
  int64_t shared_bytes = 0;  // of the block's memory
  // Neighbours in x that run at the same time and read each other's memory: a
  // divisor of x, at most kMaxCluster. More than 1 only on devices that have
  // DeviceProperties::clusters.
  uint32_t cluster = 1;
};

}  // namespace baton::engine::cuda
