// The sets of kernels that the build may hold, one per source file. Only the
// kernel choice includes this. A set may be called only on a CPU that has the
// instruction set.
#pragma once

#include "engine/cpu/kernels.h"

namespace baton::engine::cpu {

extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Bf16Kernels;

}  // namespace baton::engine::cpu
