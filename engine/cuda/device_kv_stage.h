// KvStage of a CUDA device: pinned memory of the host, which kernels on two
// streams of their own copy to and from (page_copy.h), so that neither a step
// nor the other direction waits. See kv_stage.h for the contract.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/page_copy.h"
#include "engine/kv_copy.h"
#include "engine/kv_layout.h"
#include "engine/kv_stage.h"

namespace baton::engine::cuda {

// Copies blocks of KV in device memory to the host and back. Between two steps.
class DeviceKvCopy final : public KvCopy {
 public:
  // The arena and the stream outlive it.
  DeviceKvCopy(const KvLayout& layout, std::byte* device_memory, Stream& stream)
      : layout_(layout), device_memory_(device_memory), stream_(stream) {}

  void ToHost(absl::Span<const BlockId> blocks,
              absl::Span<std::byte> host) override;
  void FromHost(absl::Span<const std::byte> host,
                absl::Span<const BlockId> blocks) override;

 private:
  const KvLayout layout_;
  std::byte* const device_memory_;
  Stream& stream_;
};

class DeviceKvStage final : public KvStage {
 public:
  // With as many blocks as `bytes` hold, but no more than `layout` has; with
  // `shared`, in memory that peers of this host can read. `compute` is the
  // stream of the engine's steps. ResourceExhausted, naming the option.
  static absl::StatusOr<std::unique_ptr<DeviceKvStage>> Create(
      const KvLayout& layout, std::byte* device_memory, Stream& compute,
      int64_t bytes, bool shared);
  // Waits for the copies.
  ~DeviceKvStage() override;

  const StagedMemory& host() const override { return host_; }
  Ticket ToHost(int32_t first_layer, int32_t num_layers,
                absl::Span<const StagedBlock> blocks) override;
  Ticket ToDevice(int32_t first_layer, int32_t num_layers,
                  absl::Span<const StagedBlock> blocks) override;
  bool Done(Ticket ticket) override;
  void WithStep(std::vector<StagedBlock> blocks) override;
  void SetWake(std::function<void()> wake) override;
  KvCopy& copy() override { return copy_; }

  // For the forward pass, in this order. Whether WithStep named blocks.
  bool copies_step() const { return !step_blocks_.empty(); }
  // If so: begins the step's copies of a layer,
  // layers in their order: `written` is recorded behind what writes it.
  void CopyLayerOfStep(int32_t layer, const Event& written);
  // Blocks until they are done, and what was asked for before.
  void AwaitLayerOfStep(int32_t layer);
  // What WithStep said is done, or, for a step without a hook, void.
  // REQUIRES: the layers whose copies began were awaited.
  void EndStep();

 private:
  // A list of moves that a kernel reads while it runs.
  struct Moves {
    PinnedBuffer memory;
    int32_t count = 0;
  };
  // A copy under way.
  struct Copy {
    std::unique_ptr<Event> done;
    // Of the last copy that reads it; else null.
    std::unique_ptr<Moves> moves;
  };
  // One direction.
  struct Lane {
    // Few and short kernels, that others wait for.
    Stream stream{/*urgent=*/true};
    // Those up to here are done; the next ones are under way, in order.
    uint64_t done = 0;
    std::deque<Copy> copies;
  };

  DeviceKvStage(const KvLayout& layout, std::byte* device_memory,
                Stream& compute, cpu::MemoryArena arena, PinnedMemory pinned,
                const KvLayout& staged_layout);

  Lane& LaneOf(bool to_device) { return to_device ? to_device_ : to_host_; }
  Ticket Begin(bool to_device, int32_t first_layer, int32_t num_layers,
               absl::Span<const StagedBlock> blocks);
  std::unique_ptr<Moves> MovesOf(bool to_device,
                                 absl::Span<const StagedBlock> blocks);
  // Gives the copy to the lane, behind what that waits for.
  Ticket Give(bool to_device, int32_t first_layer, int32_t num_layers,
              const Moves& moves);
  // Forgets copies that are done.
  void Collect(Lane& lane);

  const KvLayout layout_;
  std::byte* const device_memory_;
  Stream& compute_;
  const cpu::MemoryArena arena_;
  const PinnedMemory pinned_;
  StagedMemory host_;
  DeviceKvCopy copy_;
  // Calls on their way keep it.
  struct Waker {
    absl::Mutex mu;
    std::function<void()> wake ABSL_GUARDED_BY(mu);
  };
  const std::shared_ptr<Waker> waker_ = std::make_shared<Waker>();

  Lane to_host_;
  Lane to_device_;
  // Recorded on the stream of steps, for copies to wait for.
  Event computed_;
  // Of the next step, or of the one under way.
  std::vector<StagedBlock> step_blocks_;
  std::unique_ptr<Moves> step_moves_;
  std::vector<Ticket> step_tickets_;  // by layer
  // To be used again.
  std::vector<std::unique_ptr<Event>> free_events_;
  std::vector<std::unique_ptr<Moves>> free_moves_;
};

}  // namespace baton::engine::cuda
