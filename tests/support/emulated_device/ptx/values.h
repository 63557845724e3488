// The values of a register, one for each lane.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/log.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {

template <typename T>
using Values = std::array<T, kLanes>;

template <typename T>
Values<T> Read(Warp& w, int number) {
  Values<T> values;
  std::memcpy(values.data(), w.At<T>(number), sizeof(values));
  return values;
}

template <typename T>
void Write(Warp& w, int number, const Values<T>& values, uint32_t mask) {
  T* const to = w.At<T>(number);
  if (mask == kAllLanes) {
    std::memcpy(to, values.data(), sizeof(values));
    return;
  }
  // Without branches, for vectors.
  for (int lane = 0; lane < kLanes; ++lane) {
    to[lane] = mask >> lane & 1 ? values[lane] : to[lane];
  }
}

[[noreturn]] inline void Unknown(const Instruction& i, const Warp& w) {
  LOG(FATAL) << "PTX of " << w.kernel.name << ", line " << i.line
             << ": not for this type";
  std::abort();
}

// Of an instruction that is not for its type.
inline void FailOfType(const Instruction& i, uint32_t mask, Warp& w) {
  Unknown(i, w);
}

// Of an instruction that moves, selects or converts. Null when it is none.
Handler MoveHandler(const Instruction& instruction);

}  // namespace baton::engine::cuda::emulated::ptx
