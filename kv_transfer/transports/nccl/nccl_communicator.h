// Communicators of NCCL, on one GPU. Each has a thread of its own, which makes
// all of its calls to CUDA and NCCL, because some of them block for long
// (joining, the first post, aborting), and a stream of its own.
//
// Memory that is posted must belong to this GPU, and must not be registered
// with NCCL: then only the receiver's own kernel writes to it, through buffers
// of NCCL, so that nothing writes any more once the stream is idle. Between two
// ranks of one process NCCL lets the sender's kernel write directly; set
// NCCL_P2P_DIRECT_DISABLE=1 there.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kv_transfer/transports/nccl/communicator.h"

namespace baton::kv_transfer {

struct NcclCommunicatorOptions {
  // The CUDA device that all of them use. NCCL wants the two ranks of a
  // communicator on different ones.
  int device = 0;
  // Most thread blocks that move bytes; they take their multiprocessors from
  // the engine. 0: as NCCL likes.
  int max_blocks = 0;
  // How often a thread looks whether the GPU is done while it waits for it.
  absl::Duration poll_interval = absl::Microseconds(20);
  // Off in tests: instead of CreateNcclCommunicators, communicators say that
  // there is no such device.
  bool check_device = true;
};

// FailedPrecondition: no such device, no usable driver, no library of NCCL.
// Unimplemented: built without CUDA or NCCL.
absl::StatusOr<std::unique_ptr<Communicators>> CreateNcclCommunicators(
    const NcclCommunicatorOptions& options);

}  // namespace baton::kv_transfer
