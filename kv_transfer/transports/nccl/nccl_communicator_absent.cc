// In place of nccl_communicator.cc where CUDA or NCCL was not found.
#include "kv_transfer/transports/nccl/nccl_communicator.h"

namespace baton::kv_transfer {

absl::StatusOr<std::unique_ptr<Communicators>> CreateNcclCommunicators(
    const NcclCommunicatorOptions&) {
  return absl::UnimplementedError("built without CUDA and NCCL");
}

}  // namespace baton::kv_transfer
