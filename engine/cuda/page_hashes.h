// Hashes pages of one device for threads of the host (page_hash.h), on a stream
// of its own and with lists of a fixed size: it takes no memory once it exists.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/page_hash.h"

namespace baton::engine::cuda {

class PageHashes final {
 public:
  // Most runs, and pages, that a kernel gets; more are done in turns. A page
  // has no more runs than that.
  static constexpr int32_t kMaxRuns = 8192;

  // ResourceExhausted: no pinned memory.
  static absl::StatusOr<std::unique_ptr<PageHashes>> Create(int32_t device);

  // As KvStage::HashPages. Any thread; one at a time is served.
  std::vector<uint64_t> Hash(absl::Span<const absl::Span<const std::byte>> runs,
                             int64_t page_bytes, uint64_t first_seed)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PageHashes(int32_t device, PinnedBuffer lists);

  // Runs the kernel on the first pages of the lists.
  void HashListed(int32_t pages, int64_t page_bytes, uint64_t first_seed,
                  std::vector<uint64_t>* hashes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int32_t device_;

  absl::Mutex mu_;
  Stream stream_ ABSL_GUARDED_BY(mu_);
  // What the kernel reads and writes.
  const PinnedBuffer lists_;
  HashRun* const runs_;
  int32_t* const first_run_;
  uint64_t* const hashes_;
};

}  // namespace baton::engine::cuda
