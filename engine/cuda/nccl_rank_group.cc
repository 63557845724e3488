// RankGroup over NCCL: a communicator per device of this process. Its library
// is looked for when several devices share a model for the first time, so that
// programs run where it is not.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <nccl.h>

#include <numeric>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/rank_group.h"
#include "engine/cuda/target/stream_handle.h"

namespace baton::engine::cuda {
namespace {

// By the loader's own ways, then where the CUDA Toolkit lies.
constexpr const char* kLibraries[] = {"libnccl.so.2",
                                      "/usr/local/cuda/lib64/libnccl.so.2"};

struct Nccl {
  decltype(&ncclCommInitAll) init_all = nullptr;
  decltype(&ncclCommDestroy) destroy = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclGetErrorString) error_string = nullptr;
};

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  if (*function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("tensor_parallel: NCCL has no ", name));
}

// Stays loaded.
absl::StatusOr<Nccl> LoadNccl() {
  std::string why;
  void* library = nullptr;
  for (const char* const name : kLibraries) {
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    if (why.empty()) why = dlerror();
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel: NCCL: ", why));
  }
  Nccl nccl;
  BATON_RETURN_IF_ERROR(Find(library, "ncclCommInitAll", &nccl.init_all));
  BATON_RETURN_IF_ERROR(Find(library, "ncclCommDestroy", &nccl.destroy));
  BATON_RETURN_IF_ERROR(Find(library, "ncclAllGather", &nccl.all_gather));
  BATON_RETURN_IF_ERROR(
      Find(library, "ncclGetErrorString", &nccl.error_string));
  return nccl;
}

class NcclRankGroup final : public RankGroup {
 public:
  NcclRankGroup(const Nccl& nccl, std::vector<ncclComm_t> communicators)
      : nccl_(nccl), communicators_(std::move(communicators)) {}
  ~NcclRankGroup() override {
    for (const ncclComm_t communicator : communicators_) {
      const ncclResult_t result = nccl_.destroy(communicator);
      if (result != ncclSuccess) {
        LOG(ERROR) << "NCCL: ncclCommDestroy: " << nccl_.error_string(result);
      }
    }
  }

  void AllGather(int32_t rank, const void* send, void* receive, int64_t bytes,
                 Stream& stream) override {
    const ncclResult_t result =
        nccl_.all_gather(send, receive, bytes, ncclUint8,
                         communicators_.at(rank), stream.handle()->native);
    CHECK_EQ(result, ncclSuccess)
        << "NCCL: ncclAllGather: " << nccl_.error_string(result);
  }

 private:
  const Nccl nccl_;
  const std::vector<ncclComm_t> communicators_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroup>> CreateRankGroup(int32_t ranks) {
  BATON_ASSIGN_OR_RETURN(const Nccl nccl, LoadNccl());
  std::vector<int> devices(ranks);
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<ncclComm_t> communicators(ranks);
  const ncclResult_t result =
      nccl.init_all(communicators.data(), ranks, devices.data());
  UseDevice(0);
  if (result != ncclSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel: NCCL: ncclCommInitAll of ", ranks,
                     " devices: ", nccl.error_string(result)));
  }
  return std::unique_ptr<RankGroup>(
      new NcclRankGroup(nccl, std::move(communicators)));
}

}  // namespace baton::engine::cuda
