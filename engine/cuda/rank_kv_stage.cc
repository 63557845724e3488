#include "engine/cuda/rank_kv_stage.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::engine::cuda {
namespace {

constexpr int32_t kFewestMoves = 64;

}  // namespace

RankKvStage::RankKvStage(int32_t device, const KvLayout& layout,
                         std::byte* memory, Stream& compute,
                         const StagedPages& staged,
                         std::function<void()> copied)
    : device_(device),
      layout_(layout),
      memory_(memory),
      compute_(compute),
      staged_(staged),
      copied_(std::move(copied)) {}

RankKvStage::~RankKvStage() {
  absl::MutexLock lock(&mu_);
  outward_.stream.Wait();
  inward_.stream.Wait();
}

std::unique_ptr<RankKvStage::Moves> RankKvStage::MovesOf(
    bool inward, absl::Span<const StagedBlock> blocks) {
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
    CHECK(b.staged >= 0 && b.staged < staged_.layout.num_blocks) << b.staged;
    list[i] =
        inward ? PageMove{b.staged, b.block} : PageMove{b.block, b.staged};
  }
  return moves;
}

RankKvStage::Ticket RankKvStage::Give(bool inward, int32_t first_layer,
                                      int32_t num_layers, const Moves& moves) {
  CHECK(first_layer >= 0 && num_layers > 0 &&
        first_layer + num_layers <= layout_.num_layers);
  CHECK_GT(moves.count, 0);
  Lane& lane = LaneOf(inward);
  PagesOf on_device;
  on_device.first = memory_ + first_layer * layout_.layer_bytes();
  on_device.layer_bytes = layout_.layer_bytes();
  on_device.page_bytes = layout_.page_bytes();
  PagesOf on_stage;
  on_stage.first = staged_.memory + first_layer * staged_.layout.layer_bytes() +
                   staged_.page_offset;
  on_stage.layer_bytes = staged_.layout.layer_bytes();
  on_stage.page_bytes = staged_.layout.page_bytes();
  PageCopyArgs args;
  args.from = inward ? on_stage : on_device;
  args.to = inward ? on_device : on_stage;
  args.bytes = layout_.page_bytes();
  args.layers = num_layers;
  args.moves = moves.memory.as<PageMove>();
  args.num_moves = moves.count;
  RunPageCopy(args, lane.stream.handle());
  Copy copy;
  if (free_events_.empty()) {
    copy.done = std::make_shared<Event>();
  } else {
    copy.done = std::move(free_events_.back());
    free_events_.pop_back();
  }
  lane.stream.Record(*copy.done);
  lane.copies.push_back(std::move(copy));
  return {inward, lane.done + lane.copies.size()};
}

RankKvStage::Ticket RankKvStage::Begin(bool inward, int32_t first_layer,
                                       int32_t num_layers,
                                       absl::Span<const StagedBlock> blocks) {
  UseDevice(device_);
  absl::MutexLock lock(&mu_);
  Lane& lane = LaneOf(inward);
  while (!lane.copies.empty() && lane.copies.front().done->Done()) {
    Forget(lane, lane.done + 1);
  }
  compute_.Record(computed_);
  lane.stream.WaitFor(computed_);
  std::unique_ptr<Moves> moves = MovesOf(inward, blocks);
  const Ticket ticket = Give(inward, first_layer, num_layers, *moves);
  lane.copies.back().moves = std::move(moves);
  lane.stream.Call(copied_);
  return ticket;
}

void RankKvStage::Forget(Lane& lane, uint64_t number) {
  while (lane.done < number) {
    Copy copy = std::move(lane.copies.front());
    lane.copies.pop_front();
    ++lane.done;
    if (copy.done.use_count() == 1) {
      free_events_.push_back(std::move(copy.done));
    }
    if (copy.moves != nullptr) free_moves_.push_back(std::move(copy.moves));
  }
}

std::shared_ptr<Event> RankKvStage::EventOf(Ticket ticket) {
  absl::MutexLock lock(&mu_);
  const Lane& lane = LaneOf(ticket.inward);
  if (ticket.number <= lane.done) return nullptr;
  return lane.copies[ticket.number - lane.done - 1].done;
}

bool RankKvStage::Done(Ticket ticket) {
  // In the middle of a step, perhaps: whichever device the thread uses, it goes
  // on using.
  std::shared_ptr<Event> done = EventOf(ticket);
  if (done == nullptr) return true;
  if (!done->Done()) return false;
  done = nullptr;
  absl::MutexLock lock(&mu_);
  Forget(LaneOf(ticket.inward), ticket.number);
  return true;
}

void RankKvStage::WithStep(std::vector<StagedBlock> blocks) {
  CHECK(step_tickets_.empty()) << "in the middle of a step";
  step_blocks_ = std::move(blocks);
  if (step_blocks_.empty()) return;
  // Now, as it may take memory: not while devices wait for each other.
  UseDevice(device_);
  absl::MutexLock lock(&mu_);
  if (step_moves_ != nullptr) free_moves_.push_back(std::move(step_moves_));
  step_moves_ = MovesOf(/*inward=*/false, step_blocks_);
}

void RankKvStage::CopyLayerOfStep(int32_t layer, const Event& written) {
  CHECK(copies_step());
  CHECK_EQ(layer, static_cast<int32_t>(step_tickets_.size()));
  absl::MutexLock lock(&mu_);
  outward_.stream.WaitFor(written);
  step_tickets_.push_back(
      Give(/*inward=*/false, layer, /*num_layers=*/1, *step_moves_));
}

void RankKvStage::AwaitLayerOfStep(int32_t layer) {
  const std::shared_ptr<Event> done = EventOf(step_tickets_.at(layer));
  if (done != nullptr) done->Wait();
}

void RankKvStage::EndStep() {
  absl::MutexLock lock(&mu_);
  if (step_moves_ != nullptr) free_moves_.push_back(std::move(step_moves_));
  step_tickets_.clear();
  step_blocks_.clear();
}

}  // namespace baton::engine::cuda
