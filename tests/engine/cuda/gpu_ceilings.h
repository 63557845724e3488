// What a GPU can do at best, measured: the ceilings that the engine's times are
// compared with, in the same run.
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

// Bytes read and written per second by a copy of `bytes` on the device; median.
double CopyBytesPerSecond(Stream& stream, int64_t bytes);

// Operations per second of cuBLASLt's product of bfloat16 matrices [size][size]
// of random values, float32 sums, the best of what its heuristic offers;
// median. 0 in a build without cuBLASLt.
double MatmulOpsPerSecond(Stream& stream, int64_t size);

// Microseconds of one launch of those that `run` gives to the stream, `count`
// of them, the i-th by run(i), all in one graph; median of `repeats`.
double MicrosecondsInGraph(Stream& stream, int repeats, int32_t count,
                           absl::FunctionRef<void(int32_t)> run);

}  // namespace baton::engine::cuda
