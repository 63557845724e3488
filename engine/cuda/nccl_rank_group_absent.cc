// Where the build found no NCCL.
#include "absl/status/status.h"
#include "engine/cuda/rank_group.h"

namespace baton::engine::cuda {

absl::StatusOr<std::unique_ptr<RankGroup>> CreateRankGroup(int32_t) {
  return absl::FailedPreconditionError(
      "tensor_parallel: this build has no NCCL (nccl.h was not found)");
}

}  // namespace baton::engine::cuda
