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
  host_.layout = layout;
  host_.layout.num_blocks = num_blocks;
  memory_.assign(static_cast<size_t>(host_.layout.total_bytes()),
                 std::byte{0x5A});
  host_.memory = absl::MakeSpan(memory_);
}

SimStage::Ticket SimStage::Begin(bool to_device, Copy copy) {
  CHECK(!copy.blocks.empty());
  Lane& lane = LaneOf(to_device);
  lane.copies.push_back(std::move(copy));
  return {to_device, lane.done + lane.copies.size()};
}

SimStage::Ticket SimStage::ToHost(int32_t first_layer, int32_t num_layers,
                                  absl::Span<const StagedBlock> blocks) {
  return Begin(/*to_device=*/false,
               {first_layer, num_layers, {blocks.begin(), blocks.end()}});
}

SimStage::Ticket SimStage::ToDevice(int32_t first_layer, int32_t num_layers,
                                    absl::Span<const StagedBlock> blocks) {
  return Begin(/*to_device=*/true,
               {first_layer, num_layers, {blocks.begin(), blocks.end()}});
}

void SimStage::Run(bool to_device, const Copy& copy) {
  const auto bytes = static_cast<size_t>(layout_.page_bytes());
  for (int32_t layer = copy.first_layer;
       layer < copy.first_layer + copy.num_layers; ++layer) {
    for (const StagedBlock& b : copy.blocks) {
      std::byte* const on_device =
          device_.data() + layout_.PageOffset(layer, b.block);
      std::byte* const on_host =
          memory_.data() + host_.layout.PageOffset(layer, b.staged);
      if (to_device) {
        std::memcpy(on_device, on_host, bytes);
      } else {
        std::memcpy(on_host, on_device, bytes);
      }
    }
  }
}

void SimStage::RunNext(bool to_device) {
  Lane& lane = LaneOf(to_device);
  Run(to_device, lane.copies.front());
  lane.copies.pop_front();
  ++lane.done;
}

bool SimStage::Done(Ticket ticket) {
  const Lane& lane = LaneOf(ticket.to_device);
  while (ticket.number > lane.done && chance_()) RunNext(ticket.to_device);
  return ticket.number <= lane.done;
}

void SimStage::RunLayerOfStep(int32_t layer) {
  if (step_blocks_.empty()) return;
  while (!to_host_.copies.empty()) RunNext(/*to_device=*/false);
  Run(/*to_device=*/false, {layer, 1, step_blocks_});
}

void SimStage::Pass() {
  for (const bool to_device : {false, true}) {
    while (!LaneOf(to_device).copies.empty() && chance_()) RunNext(to_device);
  }
}

std::vector<absl::Span<const std::byte>> SimStage::DeviceLandings() const {
  std::vector<absl::Span<const std::byte>> pages;
  for (const Copy& copy : to_device_.copies) {
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
  for (const Lane* lane : {&to_host_, &to_device_}) {
    for (const Copy& copy : lane->copies) {
      for (const StagedBlock& b : copy.blocks) blocks.push_back(b.staged);
    }
  }
  return blocks;
}

}  // namespace baton::sim
