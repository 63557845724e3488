// The stage of a simulated engine whose KV lies on a device: copies are done
// one by one, in the order of their direction, when the dice say so.
//
// One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "common/log.h"
#include "engine/kv_copy.h"
#include "engine/kv_stage.h"

namespace baton::sim {

class SimStage final : public engine::KvStage {
 public:
  // `device`: the engine's memory, of `layout`; it outlives the stage. `chance`
  // says whether one more copy is done by now.
  SimStage(const engine::KvLayout& layout, absl::Span<std::byte> device,
           int32_t num_blocks, std::function<bool()> chance);

  const engine::StagedMemory& staged() const override { return staged_; }
  Ticket CopyOut(int32_t first_layer, int32_t num_layers,
                 absl::Span<const engine::StagedBlock> blocks) override;
  Ticket CopyIn(int32_t first_layer, int32_t num_layers,
                absl::Span<const engine::StagedBlock> blocks) override;
  bool Done(Ticket ticket) override;
  void WithStep(std::vector<engine::StagedBlock> blocks) override {
    step_blocks_ = std::move(blocks);
  }
  // The simulation gives every loop its turns.
  void SetWake(std::function<void()>) override {}
  // Its staged blocks are the host's.
  std::vector<uint64_t> HashPages(absl::Span<const absl::Span<const std::byte>>,
                                  int64_t, uint64_t) override {
    LOG(FATAL) << "the CPU reads these blocks by itself";
  }
  void SelectDevice() override { LOG(FATAL) << "they are on none"; }
  engine::KvCopy& copy() override { return copy_; }

  // Of the step: the engine has written `layer`.
  void RunLayerOfStep(int32_t layer);
  void EndStep() { step_blocks_.clear(); }
  // Time passes.
  void Pass();

  // Pages of the device that copies may still write.
  std::vector<absl::Span<const std::byte>> DeviceLandings() const;
  // Staged blocks that copies may still read or write.
  std::vector<BlockId> StagedInUse() const;

 private:
  struct Copy {
    int32_t first_layer = 0;
    int32_t num_layers = 0;
    std::vector<engine::StagedBlock> blocks;
  };
  struct Lane {
    uint64_t done = 0;
    std::deque<Copy> copies;
  };

  Lane& LaneOf(bool inward) { return inward ? inward_ : outward_; }
  Ticket Begin(bool inward, Copy copy);
  void RunNext(bool inward);
  void Run(bool inward, const Copy& copy);

  const engine::KvLayout layout_;
  const absl::Span<std::byte> device_;
  const std::function<bool()> chance_;
  std::vector<std::byte> memory_;
  engine::StagedMemory staged_;
  engine::HostKvCopy copy_;
  Lane outward_;
  Lane inward_;
  std::vector<engine::StagedBlock> step_blocks_;
};

}  // namespace baton::sim
