// The loops that measure what a CPU can do, one set per instruction set and
// source file. Only ceilings.cc includes this. A set may be called only on a
// CPU that has the instruction set. Any thread.
#pragma once

#include <cstdint>

namespace baton::engine::cpu {

struct CeilingLoops {
  // That of the kernel set whose instructions these are.
  const char* name;
  // Each runs `rounds` rounds of independent sums and returns something that
  // depends on all of them.
  float (*bf16)(int64_t rounds);
  int32_t (*int8)(int64_t rounds);
  // Multiplications and additions of one round.
  int64_t bf16_operations;
  int64_t int8_operations;
  // Reads `bytes`, a multiple of 1024, from `data`, aligned to 64.
  uint64_t (*read)(const void* data, int64_t bytes);
};

extern const CeilingLoops kPortableCeilingLoops;
extern const CeilingLoops kAvx2CeilingLoops;
extern const CeilingLoops kAvx512Bf16CeilingLoops;

}  // namespace baton::engine::cpu
