// What this machine's CPUs and memory can do at most, measured now: the
// ceilings that a benchmark holds an engine's speed against.
//
// Arithmetic is measured by loops that keep their sums in registers and touch
// no memory, memory by reading a buffer much larger than the caches. Another
// process that runs at the same time lowers what is found.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::engine::cpu {

// 1e9 per second. A multiplication with its addition counts as two operations.
struct Ceilings {
  // Products of bfloat16 values with float sums: by their own instruction where
  // the kernel set has one, else as float products.
  double bf16_gflops = 0;
  // Products of 8-bit integers with 32-bit sums.
  double int8_gops = 0;
  // Bytes read.
  double memory_gbs = 0;
};

struct CeilingOptions {
  // All together; 0 takes the CPUs that this process may use.
  int32_t num_threads = 0;
  // Whose instructions; empty takes the best set (kernel_choice.h).
  absl::string_view isa;
  // About how long each of the three is measured. The best of the rounds in it
  // counts, at least two.
  absl::Duration time_each = absl::Milliseconds(500);
  // Read from; less when that is not to be had. Should be many times the size
  // of the caches.
  int64_t memory_bytes = int64_t{768} << 20;
};

// InvalidArgument when there is no such set of kernels; ResourceExhausted when
// there is no memory to read from. Blocks.
absl::StatusOr<Ceilings> MeasureCeilings(const CeilingOptions& options);

}  // namespace baton::engine::cpu
