// NCCL's library, found at run time. Any thread.
#pragma once

#include <nccl.h>

#include "absl/status/statusor.h"

namespace baton {

// Its functions, by NCCL's own names.
struct NcclLibrary {
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitAll) comm_init_all = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
};

// Before 2.19.1 communicators of several threads could not be given up without
// hanging (NVIDIA/nccl issues 863 and 992).
inline constexpr int kOldestNccl = NCCL_VERSION(2, 19, 1);

// Loads it the first time; it stays loaded. FailedPrecondition, with the
// loader's reason: it is neither where the loader looks nor
// with the CUDA Toolkit in /usr/local/cuda, lacks a function, or is older than
// kOldestNccl.
absl::StatusOr<const NcclLibrary*> LoadNccl();

}  // namespace baton
