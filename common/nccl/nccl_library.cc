#include "common/nccl/nccl_library.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"

namespace baton {
namespace {

// By the loader's own ways, then where the CUDA Toolkit lies.
constexpr const char* kLibraries[] = {"libnccl.so.2",
                                      "/usr/local/cuda/lib64/libnccl.so.2",
                                      "/usr/local/cuda/lib/libnccl.so.2"};

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("NCCL: the library has no ", name));
}

absl::StatusOr<NcclLibrary> Load() {
  std::vector<std::string> reasons;
  void* library = nullptr;
  for (const char* const name : kLibraries) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    reasons.push_back(dlerror());
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL: ", absl::StrJoin(reasons, "; ")));
  }
  NcclLibrary nccl;
  decltype(&ncclGetVersion) get_version = nullptr;
  BATON_RETURN_IF_ERROR(Find(library, "ncclGetVersion", &get_version));
  int version = 0;
  if (get_version(&version) != ncclSuccess || version < kOldestNccl) {
    return absl::FailedPreconditionError(
        absl::StrCat("NCCL: the library's version is ", version, ", and not ",
                     kOldestNccl, " (2.19.1) or later"));
  }
  const absl::Status found[] = {
      Find(library, "ncclGetErrorString", &nccl.get_error_string),
      Find(library, "ncclGetLastError", &nccl.get_last_error),
      Find(library, "ncclGetUniqueId", &nccl.get_unique_id),
      Find(library, "ncclCommInitAll", &nccl.comm_init_all),
      Find(library, "ncclCommInitRankConfig", &nccl.comm_init_rank_config),
      Find(library, "ncclCommGetAsyncError", &nccl.comm_get_async_error),
      Find(library, "ncclCommAbort", &nccl.comm_abort),
      Find(library, "ncclCommDestroy", &nccl.comm_destroy),
      Find(library, "ncclGroupStart", &nccl.group_start),
      Find(library, "ncclGroupEnd", &nccl.group_end),
      Find(library, "ncclSend", &nccl.send),
      Find(library, "ncclRecv", &nccl.recv),
      Find(library, "ncclAllGather", &nccl.all_gather),
  };
  for (const absl::Status& status : found) BATON_RETURN_IF_ERROR(status);
  return nccl;
}

}  // namespace

absl::StatusOr<const NcclLibrary*> LoadNccl() {
  static const auto* const library = new absl::StatusOr<NcclLibrary>(Load());
  if (!library->ok()) return library->status();
  return &**library;
}

}  // namespace baton
