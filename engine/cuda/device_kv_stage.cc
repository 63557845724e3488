#include "engine/cuda/device_kv_stage.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::engine::cuda {
namespace {

constexpr int32_t kFewestMoves = 64;

}  // namespace

void DeviceKvCopy::ToHost(absl::Span<const BlockId> blocks,
                          absl::Span<std::byte> host) {
  ForEachPage(layout_, blocks, static_cast<int64_t>(host.size()),
              [&](int64_t page, int64_t at) {
                stream_.CopyToHost(host.data() + at, device_memory_ + page,
                                   layout_.page_bytes());
              });
  stream_.Wait();
}

void DeviceKvCopy::FromHost(absl::Span<const std::byte> host,
                            absl::Span<const BlockId> blocks) {
  ForEachPage(layout_, blocks, static_cast<int64_t>(host.size()),
              [&](int64_t page, int64_t at) {
                stream_.CopyToDevice(device_memory_ + page, host.data() + at,
                                     layout_.page_bytes());
              });
  stream_.Wait();
}

absl::StatusOr<std::unique_ptr<DeviceKvStage>> DeviceKvStage::Create(
    const KvLayout& layout, std::byte* device_memory, Stream& compute,
    int64_t bytes, bool shared) {
  KvLayout staged = layout;
  staged.num_blocks = static_cast<int32_t>(
      std::min<int64_t>(bytes / layout.block_bytes(), layout.num_blocks));
  if (staged.num_blocks < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("kv_staging_bytes: ", bytes,
                     " is too small; one KV block of this "
                     "model takes ",
                     layout.block_bytes(), " bytes"));
  }
  constexpr char kPurpose[] = "memory for staged KV blocks (kv_staging_bytes)";
  BATON_ASSIGN_OR_RETURN(
      cpu::MemoryArena arena,
      shared ? cpu::MemoryArena::AllocateShared(staged.total_bytes(), kPurpose)
             : cpu::MemoryArena::Allocate(staged.total_bytes(), kPurpose));
  BATON_ASSIGN_OR_RETURN(PinnedMemory pinned,
                         PinnedMemory::Pin(arena.memory(), kPurpose));
  return std::unique_ptr<DeviceKvStage>(
      new DeviceKvStage(layout, device_memory, compute, std::move(arena),
                        std::move(pinned), staged));
}

DeviceKvStage::DeviceKvStage(const KvLayout& layout, std::byte* device_memory,
                             Stream& compute, cpu::MemoryArena arena,
                             PinnedMemory pinned, const KvLayout& staged_layout)
    : layout_(layout),
      device_memory_(device_memory),
      compute_(compute),
      arena_(std::move(arena)),
      pinned_(std::move(pinned)),
      host_{staged_layout, arena_.memory(), arena_.descriptor()},
      copy_(layout, device_memory, compute) {}

DeviceKvStage::~DeviceKvStage() {
  to_host_.stream.Wait();
  to_device_.stream.Wait();
}

std::unique_ptr<DeviceKvStage::Moves> DeviceKvStage::MovesOf(
    bool to_device, absl::Span<const StagedBlock> blocks) {
  const auto count = static_cast<int32_t>(blocks.size());
  const int64_t bytes = count * int64_t{sizeof(PageMove)};
  const auto fits = std::find_if(
      free_moves_.begin(), free_moves_.end(),
      [&](const auto& moves) { return moves->memory.bytes() >= bytes; });
  std::unique_ptr<Moves> moves;
  if (fits != free_moves_.end()) {
    moves = std::move(*fits);
    free_moves_.erase(fits);
  } else {
    moves = std::make_unique<Moves>();
    auto memory = PinnedBuffer::Allocate(
        std::max(count, kFewestMoves) * int64_t{sizeof(PageMove)},
        "a list of KV pages");
    CHECK(memory.ok()) << memory.status();
    moves->memory = *std::move(memory);
  }
  moves->count = count;
  auto* const list = moves->memory.as<PageMove>();
  for (int32_t i = 0; i < count; ++i) {
    const StagedBlock& b = blocks[i];
    CHECK(b.block >= 0 && b.block < layout_.num_blocks) << b.block;
    CHECK(b.staged >= 0 && b.staged < host_.layout.num_blocks) << b.staged;
    list[i] =
        to_device ? PageMove{b.staged, b.block} : PageMove{b.block, b.staged};
  }
  return moves;
}

KvStage::Ticket DeviceKvStage::Give(bool to_device, int32_t first_layer,
                                    int32_t num_layers, const Moves& moves) {
  CHECK(first_layer >= 0 && num_layers > 0 &&
        first_layer + num_layers <= layout_.num_layers);
  CHECK_GT(moves.count, 0);
  Lane& lane = LaneOf(to_device);
  std::byte* const on_device =
      device_memory_ + first_layer * layout_.layer_bytes();
  std::byte* const on_host =
      pinned_.device() + first_layer * host_.layout.layer_bytes();
  PageCopyArgs args;
  args.from = to_device ? on_host : on_device;
  args.from_layer_bytes =
      to_device ? host_.layout.layer_bytes() : layout_.layer_bytes();
  args.to = to_device ? on_device : on_host;
  args.to_layer_bytes =
      to_device ? layout_.layer_bytes() : host_.layout.layer_bytes();
  args.page_bytes = layout_.page_bytes();
  args.layers = num_layers;
  args.moves = moves.memory.as<PageMove>();
  args.num_moves = moves.count;
  RunPageCopy(args, lane.stream.handle());
  Copy copy;
  if (free_events_.empty()) {
    copy.done = std::make_unique<Event>();
  } else {
    copy.done = std::move(free_events_.back());
    free_events_.pop_back();
  }
  lane.stream.Record(*copy.done);
  lane.copies.push_back(std::move(copy));
  return {to_device, lane.done + lane.copies.size()};
}

KvStage::Ticket DeviceKvStage::Begin(bool to_device, int32_t first_layer,
                                     int32_t num_layers,
                                     absl::Span<const StagedBlock> blocks) {
  UseDevice(kEngineDevice);
  Lane& lane = LaneOf(to_device);
  Collect(lane);
  compute_.Record(computed_);
  lane.stream.WaitFor(computed_);
  std::unique_ptr<Moves> moves = MovesOf(to_device, blocks);
  const Ticket ticket = Give(to_device, first_layer, num_layers, *moves);
  lane.copies.back().moves = std::move(moves);
  lane.stream.Call([waker = waker_] {
    absl::MutexLock lock(&waker->mu);
    if (waker->wake) waker->wake();
  });
  return ticket;
}

KvStage::Ticket DeviceKvStage::ToHost(int32_t first_layer, int32_t num_layers,
                                      absl::Span<const StagedBlock> blocks) {
  return Begin(/*to_device=*/false, first_layer, num_layers, blocks);
}

KvStage::Ticket DeviceKvStage::ToDevice(int32_t first_layer, int32_t num_layers,
                                        absl::Span<const StagedBlock> blocks) {
  return Begin(/*to_device=*/true, first_layer, num_layers, blocks);
}

void DeviceKvStage::Collect(Lane& lane) {
  while (!lane.copies.empty() && lane.copies.front().done->Done()) {
    Copy copy = std::move(lane.copies.front());
    lane.copies.pop_front();
    ++lane.done;
    free_events_.push_back(std::move(copy.done));
    if (copy.moves != nullptr) free_moves_.push_back(std::move(copy.moves));
  }
}

void DeviceKvStage::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&waker_->mu);
  waker_->wake = std::move(wake);
}

bool DeviceKvStage::Done(Ticket ticket) {
  Lane& lane = LaneOf(ticket.to_device);
  if (ticket.number > lane.done) {
    UseDevice(kEngineDevice);
    Collect(lane);
  }
  return ticket.number <= lane.done;
}

void DeviceKvStage::WithStep(std::vector<StagedBlock> blocks) {
  CHECK(step_tickets_.empty()) << "in the middle of a step";
  step_blocks_ = std::move(blocks);
}

void DeviceKvStage::CopyLayerOfStep(int32_t layer, const Event& written) {
  CHECK(copies_step());
  CHECK_EQ(layer, static_cast<int32_t>(step_tickets_.size()));
  to_host_.stream.WaitFor(written);
  if (layer == 0) step_moves_ = MovesOf(/*to_device=*/false, step_blocks_);
  step_tickets_.push_back(
      Give(/*to_device=*/false, layer, /*num_layers=*/1, *step_moves_));
}

void DeviceKvStage::AwaitLayerOfStep(int32_t layer) {
  const Ticket ticket = step_tickets_.at(layer);
  if (ticket.number <= to_host_.done) return;
  to_host_.copies[ticket.number - to_host_.done - 1].done->Wait();
}

void DeviceKvStage::EndStep() {
  if (step_moves_ != nullptr) free_moves_.push_back(std::move(step_moves_));
  step_tickets_.clear();
  step_blocks_.clear();
}

}  // namespace baton::engine::cuda
