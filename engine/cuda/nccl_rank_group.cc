// RankGroup over NCCL: a communicator per device of this process.
#include <cuda_runtime_api.h>

#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/nccl/nccl_library.h"
#include "engine/cuda/rank_group.h"
#include "engine/cuda/target/stream_handle.h"

namespace baton::engine::cuda {
namespace {

class NcclRankGroup final : public RankGroup {
 public:
  NcclRankGroup(const NcclLibrary& nccl, std::vector<ncclComm_t> communicators)
      : nccl_(nccl), communicators_(std::move(communicators)) {}
  ~NcclRankGroup() override {
    for (const ncclComm_t communicator : communicators_) {
      const ncclResult_t result = nccl_.comm_destroy(communicator);
      if (result != ncclSuccess) {
        LOG(ERROR) << "NCCL: ncclCommDestroy: "
                   << nccl_.get_error_string(result);
      }
    }
  }

  void AllGather(int32_t rank, const void* send, void* receive, int64_t bytes,
                 Stream& stream) override {
    const ncclResult_t result =
        nccl_.all_gather(send, receive, bytes, ncclUint8,
                         communicators_.at(rank), stream.handle()->native);
    CHECK_EQ(result, ncclSuccess)
        << "NCCL: ncclAllGather: " << nccl_.get_error_string(result);
  }

 private:
  const NcclLibrary& nccl_;
  const std::vector<ncclComm_t> communicators_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RankGroup>> CreateRankGroup(int32_t ranks) {
  const absl::StatusOr<const NcclLibrary*> loaded = LoadNccl();
  if (!loaded.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel: ", loaded.status().message()));
  }
  const NcclLibrary& nccl = **loaded;
  std::vector<int> devices(ranks);
  std::iota(devices.begin(), devices.end(), 0);
  std::vector<ncclComm_t> communicators(ranks);
  const ncclResult_t result =
      nccl.comm_init_all(communicators.data(), ranks, devices.data());
  UseDevice(0);
  if (result != ncclSuccess) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor_parallel: NCCL: ncclCommInitAll of ", ranks,
                     " devices: ", nccl.get_error_string(result)));
  }
  return std::unique_ptr<RankGroup>(
      new NcclRankGroup(nccl, std::move(communicators)));
}

}  // namespace baton::engine::cuda
