// One device's part of the staged blocks: two streams of its own copy pages
// between its KV memory and where staged blocks lie, so that neither a step nor
// the other direction waits. Pages that lie in a row on both sides, as those of
// a prompt mostly do, go by the device's copy engines, which take nothing from
// the kernels of this process or another; scattered ones by a kernel
// (page_copy.h). See kv_stage.h for the contract; device_kv_stage.h joins the
// devices of an engine.
//
// Used by the engine's thread between steps, and by the rank's during a step;
// any thread may ask for Done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/page_copy.h"
#include "engine/kv_layout.h"
#include "engine/kv_stage.h"

namespace baton::engine::cuda {

// Staged blocks as the device's kernels name them.
struct StagedPages {
  KvLayout layout;
  std::byte* memory = nullptr;
  // As the host names them; null: they are a device's.
  std::byte* host = nullptr;
  // Where the device's heads begin in each page.
  int64_t page_offset = 0;
};

// Runs of pages that copy engines are given one by one. More would take longer
// to ask for than to copy.
inline constexpr int32_t kMostCopyRuns = 16;

class RankKvStage final {
 public:
  using Ticket = KvStage::Ticket;

  // `layout` and `memory` are the KV of this device. `compute` is the stream of
  // its steps. `copied` is called from any thread when a copy is done that was
  // asked for outside of steps. All outlive it.
  RankKvStage(int32_t device, const KvLayout& layout, std::byte* memory,
              Stream& compute, const StagedPages& staged,
              int32_t most_copy_runs, std::function<void()> copied);
  // Waits for the copies.
  ~RankKvStage();

  // Before all else, once. ResourceExhausted, naming the option.
  absl::Status TakeMemory();

  // As KvStage has them. Those devices of an engine that copy in a direction
  // are asked for the same in the same order, so that a ticket is the same for
  // all.
  Ticket Begin(bool inward, int32_t first_layer, int32_t num_layers,
               absl::Span<const StagedBlock> blocks);
  bool Done(Ticket ticket);
  void WithStep(std::vector<StagedBlock> blocks);

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
    PageMove* list = nullptr;
    int32_t count = 0;
    // In the ring, up to which place; else 0.
    uint64_t ring_end = 0;
    PinnedBuffer apart;
  };
  // A copy under way. Who waits for it keeps the event, which is not used again
  // before.
  struct Copy {
    std::shared_ptr<Event> done;
    Moves moves;
  };
  // One direction.
  struct Lane {
    // Lists of copies, one after another, over and over.
    PinnedBuffer ring;
    int64_t ring_size = 0;
    // Counted on and on: those in between are in use.
    uint64_t ring_begin = 0;
    uint64_t ring_end = 0;
    // Few and short kernels, that others wait for.
    Stream stream{/*urgent=*/true};
    // Those up to here are done; the next ones are under way, in order.
    uint64_t done = 0;
    std::deque<Copy> copies;
  };

  Lane& LaneOf(bool inward) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return inward ? inward_ : outward_;
  }
  // Writes the list to `moves`, which has the place.
  void Fill(bool inward, absl::Span<const StagedBlock> blocks, Moves& moves);
  // A list of a copy of that lane. It takes memory only where more pages are
  // under way than staged blocks have, or than kMostRingMoves.
  Moves MovesOf(bool inward, absl::Span<const StagedBlock> blocks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the copy to the lane, behind what that waits for.
  Ticket Give(bool inward, int32_t first_layer, int32_t num_layers,
              const Moves& moves) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives it to the copy engines, if its pages lie in few runs.
  bool CopyRuns(bool inward, int32_t first_layer, int32_t num_layers,
                const Moves& moves, Stream& stream);
  // Gives it to the kernel, wherever its pages lie.
  void RunCopyKernel(bool inward, int32_t first_layer, int32_t num_layers,
                     const Moves& moves, Stream& stream);
  // Forgets copies up to that number, which are done.
  void Forget(Lane& lane, uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null when the copy was forgotten.
  std::shared_ptr<Event> EventOf(Ticket ticket) ABSL_LOCKS_EXCLUDED(mu_);

  const int32_t device_;
  const KvLayout layout_;
  std::byte* const memory_;
  Stream& compute_;
  const StagedPages staged_;
  const int32_t most_copy_runs_;
  const std::function<void()> copied_;

  absl::Mutex mu_;
  Lane outward_ ABSL_GUARDED_BY(mu_);
  Lane inward_ ABSL_GUARDED_BY(mu_);
  // Recorded on the stream of steps, for copies to wait for.
  Event computed_;
  // Of the next step, or of the one under way.
  std::vector<StagedBlock> step_blocks_;
  Moves step_moves_;                  // apart, with room for all staged blocks
  std::vector<Ticket> step_tickets_;  // by layer
  // To be used again.
  std::vector<std::shared_ptr<Event>> free_events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace baton::engine::cuda
