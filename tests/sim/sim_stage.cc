#include "tests/sim/sim_stage.h"

#include <cstring>
#include <utility>

#include "common/log.h"

namespace baton::sim {

using engine::StagedBlock;

SimStage::SimStage(const engine::KvLayout& layout, absl::Span<std::byte> device,
                   int32_t num_blocks, std::function<bool()> chance)
    : layout_(layout),
      device_(device),
      chance_(std::move(chance)),
      copy_(layout, device) {
  staged_.layout = layout;
  staged_.layout.num_blocks = num_blocks;
  memory_.assign(static_cast<size_t>(staged_.layout.total_bytes()),
                 std::byte{0x5A});
  staged_.memory = absl::MakeSpan(memory_);
}

SimStage::Ticket SimStage::Begin(bool inward, Copy copy) {
  CHECK(!copy.blocks.empty());
  Lane& lane = LaneOf(inward);
  lane.copies.push_back(std::move(copy));
  return {inward, lane.done + lane.copies.size()};
}

SimStage::Ticket SimStage::CopyOut(int32_t first_layer, int32_t num_layers,
                                   absl::Span<const StagedBlock> blocks) {
  return Begin(/*inward=*/false,
               {first_layer, num_layers, {blocks.begin(), blocks.end()}});
}

SimStage::Ticket SimStage::CopyIn(int32_t first_layer, int32_t num_layers,
                                  absl::Span<const StagedBlock> blocks) {
  return Begin(/*inward=*/true,
               {first_layer, num_layers, {blocks.begin(), blocks.end()}});
}

void SimStage::Run(bool inward, const Copy& copy) {
  const auto bytes = static_cast<size_t>(layout_.page_bytes());
  for (int32_t layer = copy.first_layer;
       layer < copy.first_layer + copy.num_layers; ++layer) {
    for (const StagedBlock& b : copy.blocks) {
      std::byte* const on_device =
          device_.data() + layout_.PageOffset(layer, b.block);
      std::byte* const on_host =
          memory_.data() + staged_.layout.PageOffset(layer, b.staged);
      if (inward) {
        std::memcpy(on_device, on_host, bytes);
      } else {
        std::memcpy(on_host, on_device, bytes);
      }
    }
  }
}

void SimStage::RunNext(bool inward) {
  Lane& lane = LaneOf(inward);
  Run(inward, lane.copies.front());
  lane.copies.pop_front();
  ++lane.done;
}

bool SimStage::Done(Ticket ticket) {
  const Lane& lane = LaneOf(ticket.inward);
  while (ticket.number > lane.done && chance_()) RunNext(ticket.inward);
  return ticket.number <= lane.done;
}

void SimStage::RunLayerOfStep(int32_t layer) {
  if (step_blocks_.empty()) return;
  while (!outward_.copies.empty()) RunNext(/*inward=*/false);
  Run(/*inward=*/false, {layer, 1, step_blocks_});
}

void SimStage::Pass() {
  for (const bool inward : {false, true}) {
    while (!LaneOf(inward).copies.empty() && chance_()) RunNext(inward);
  }
}

std::vector<absl::Span<const std::byte>> SimStage::DeviceLandings() const {
  std::vector<absl::Span<const std::byte>> pages;
  for (const Copy& copy : inward_.copies) {
    for (int32_t layer = copy.first_layer;
         layer < copy.first_layer + copy.num_layers; ++layer) {
      for (const StagedBlock& b : copy.blocks) {
        pages.push_back(device_.subspan(layout_.PageOffset(layer, b.block),
                                        layout_.page_bytes()));
      }
    }
  }
  return pages;
}

std::vector<BlockId> SimStage::StagedInUse() const {
  std::vector<BlockId> blocks;
  for (const Lane* lane : {&outward_, &inward_}) {
    for (const Copy& copy : lane->copies) {
      for (const StagedBlock& b : copy.blocks) blocks.push_back(b.staged);
    }
  }
  return blocks;
}

}  // namespace baton::sim
