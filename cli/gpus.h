// Which GPUs each worker of `baton up` computes on. Any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton::cli {

// As CUDA_VISIBLE_DEVICES names them: what that variable has, else as many as
// there are device nodes. Empty: none that this process could know of.
std::vector<std::string> VisibleGpus();

// A value of CUDA_VISIBLE_DEVICES, "0,2": up to the first name that is none, as
// CUDA reads it.
std::vector<std::string> ParseGpuList(const std::string& text);

// For each of so many workers, its GPUs, `per_worker` each. No two workers get
// the same one while there are enough of them; then groups are dealt again from
// the first. InvalidArgument, naming --tensor-parallel, where there are too few
// for one worker. REQUIRES: per_worker >= 1, gpus not empty.
absl::StatusOr<std::vector<std::vector<std::string>>> DealGpus(
    const std::vector<std::string>& gpus, int workers, int per_worker);

// Whether no two workers get the same one; else InvalidArgument, with what
// `why`, such as a flag, needs and what there is.
absl::Status CheckNoneShared(const std::vector<std::string>& gpus, int workers,
                             int per_worker, const std::string& why);

}  // namespace baton::cli
