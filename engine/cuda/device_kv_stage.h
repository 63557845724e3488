// KvStage of the CUDA backend: pinned memory of the host, or memory of the
// first device, to and from which the engine's devices copy the heads that they
// have (rank_kv_stage.h). Pages that each device has whole
// (RanksHaveWholePages) are the first one's on their way out, and all take them
// in. See kv_stage.h for the contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/page_hashes.h"
#include "engine/cuda/rank_kv_stage.h"
#include "engine/kv_copy.h"
#include "engine/kv_layout.h"
#include "engine/kv_stage.h"

namespace baton::engine::cuda {

// The KV memory of one device, and the stream of its steps; both outlive who
// is given this.
struct DeviceKv {
  int32_t device = 0;
  // Of its heads.
  KvLayout layout;
  std::byte* memory = nullptr;
  Stream* compute = nullptr;
};

// Copies blocks of KV in device memory to the host and back, between two steps:
// some megabytes at a time by way of pinned memory, as a copy of each page from
// or to memory that is not pinned would be waited for by itself.
class DeviceKvCopy final : public KvCopy {
 public:
  // REQUIRES: devices, all with the same number of heads.
  explicit DeviceKvCopy(std::vector<DeviceKv> devices);

  // Of KV that goes at once; a page at least.
  static constexpr int64_t kBytesAtOnce = int64_t{8} << 20;
  // Before all else, once. ResourceExhausted, naming the option.
  absl::Status TakeMemory(int64_t bytes_at_once = kBytesAtOnce);

  void ToHost(absl::Span<const BlockId> blocks,
              absl::Span<std::byte> host) override;
  void FromHost(absl::Span<const std::byte> host,
                absl::Span<const BlockId> blocks) override;

 private:
  // Pages that go at once: of so many blocks, in so many layers; they lie one
  // after another on the host, from page `first` of each device on.
  struct Part {
    int32_t first_layer = 0;
    int32_t layers = 0;
    absl::Span<const BlockId> blocks;
    int64_t first = 0;
  };
  // A device's pages of a part, and where they come from or go to.
  struct Way {
    PinnedBuffer pages;
    PinnedBuffer moves;
  };

  // In the order that ForEachPage has.
  void ForEachPart(absl::Span<const BlockId> blocks, int64_t host_bytes,
                   absl::FunctionRef<void(const Part& part)> copy);
  // Has the kernel copy a part to its way, or from it.
  void Begin(bool to_host, size_t device, const Part& part);

  const std::vector<DeviceKv> devices_;
  const int64_t page_bytes_;
  // Devices, from the first on, whose pages together are those of the host.
  const size_t parts_;
  int64_t pages_at_once_ = 0;
  std::vector<Way> ways_;  // as devices_
};

// The memory of staged blocks.
class StagedArena final {
 public:
  enum class Kind {
    kHost,
    kSharedHost,  // that peers of this host can read
    kDevice,      // of device 0
  };
  // Bytes beside the blocks on a device (StagedMemory::spare).
  static constexpr int64_t kSpareBytes = int64_t{1} << 20;

  // ResourceExhausted, naming the option.
  static absl::StatusOr<StagedArena> Allocate(Kind kind,
                                              const KvLayout& layout);

  // As the host names it, and peers.
  StagedMemory memory() const;
  // As kernels name it.
  std::byte* device() const;

 private:
  StagedArena(const KvLayout& layout) : layout_(layout) {}

  KvLayout layout_;
  // One of the two.
  std::optional<cpu::MemoryArena> host_;
  DeviceBuffer on_device_;
  PinnedMemory pinned_;  // of host_
};

class DeviceKvStage final : public KvStage {
 public:
  // With as many blocks as `bytes` hold, but no more than `layout` has, which
  // is that of all devices together, heads in their order. ResourceExhausted,
  // naming the option. REQUIRES: of kDevice, that all devices reach the memory
  // of the first (ReachMemoryOf).
  static absl::StatusOr<std::unique_ptr<DeviceKvStage>> Create(
      const KvLayout& layout, std::vector<DeviceKv> devices, int64_t bytes,
      StagedArena::Kind kind, int32_t most_copy_runs);

  const StagedMemory& staged() const override { return staged_; }
  Ticket CopyOut(int32_t first_layer, int32_t num_layers,
                 absl::Span<const StagedBlock> blocks) override;
  Ticket CopyIn(int32_t first_layer, int32_t num_layers,
                absl::Span<const StagedBlock> blocks) override;
  bool Done(Ticket ticket) override;
  void WithStep(std::vector<StagedBlock> blocks) override;
  void SetWake(std::function<void()> wake) override;
  std::vector<uint64_t> HashPages(
      absl::Span<const absl::Span<const std::byte>> runs, int64_t page_bytes,
      uint64_t first_seed) override;
  void SelectDevice() override;
  KvCopy& copy() override { return copy_; }

  // For the forward pass of a device.
  RankKvStage* rank(int32_t rank) { return ranks_.at(rank).get(); }

 private:
  // Calls on their way keep it.
  struct Waker {
    absl::Mutex mu;
    std::function<void()> wake ABSL_GUARDED_BY(mu);
  };

  DeviceKvStage(std::vector<DeviceKv> devices, StagedArena arena,
                std::unique_ptr<PageHashes> hashes, int32_t most_copy_runs);

  Ticket Begin(bool inward, int32_t first_layer, int32_t num_layers,
               absl::Span<const StagedBlock> blocks);
  // Those that copy that way.
  absl::Span<const std::unique_ptr<RankKvStage>> RanksOf(bool inward) const {
    return absl::MakeConstSpan(ranks_).first(inward ? ranks_.size() : senders_);
  }

  const StagedArena arena_;
  const StagedMemory staged_;
  const std::unique_ptr<PageHashes> hashes_;  // of blocks on a device
  DeviceKvCopy copy_;
  // As many, from the first on, copy outwards; all inwards.
  const size_t senders_;
  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();
  std::vector<std::unique_ptr<RankKvStage>> ranks_;
};

}  // namespace baton::engine::cuda
