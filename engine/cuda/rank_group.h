// What the ranks of a tensor-parallel engine tell each other: rank r computes
// on device r, on a thread and a stream of its own.
//
// A seam like device_runtime.h: NCCL stands behind it, and in tests the device
// that the CPU plays.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

class RankGroup {
 public:
  virtual ~RankGroup() = default;

  // Work of the rank's stream, on its device: the `bytes` that each rank has at
  // `send` lie one after another, rank 0 first, at `receive` of all ranks.
  // REQUIRES: called by the rank's thread; by all ranks in the same order with
  // the same number of bytes; `receive` has room for them and is not `send`.
  virtual void AllGather(int32_t rank, const void* send, void* receive,
                         int64_t bytes, Stream& stream) = 0;
};

// Of devices [0, ranks), which were opened. FailedPrecondition, with the
// reason, where they cannot talk to each other.
absl::StatusOr<std::unique_ptr<RankGroup>> CreateRankGroup(int32_t ranks);

}  // namespace baton::engine::cuda
