#include "engine/cuda/rank_kv_stage.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::engine::cuda {
namespace {

// Most moves that the lists of a lane have room for from the beginning.
constexpr int64_t kMostRingMoves = int64_t{1} << 20;

absl::StatusOr<PinnedBuffer> ListOf(int64_t moves) {
  return PinnedBuffer::Allocate(moves * int64_t{sizeof(PageMove)},
                                "lists of KV pages (kv_staging_bytes)");
}

}  // namespace

RankKvStage::RankKvStage(int32_t device, const KvLayout& layout,
                         std::byte* memory, Stream& compute,
                         const StagedPages& staged, int32_t most_copy_runs,
                         std::function<void()> copied)
    : device_(device),
      layout_(layout),
      memory_(memory),
      compute_(compute),
      staged_(staged),
      most_copy_runs_(most_copy_runs),
      copied_(std::move(copied)) {}

absl::Status RankKvStage::TakeMemory() {
  // Now, as later devices may wait for each other, or for other processes, and
  // taking memory for them. A page of a staged block is copied once at a time.
  UseDevice(device_);
  const int64_t blocks = staged_.layout.num_blocks;
  absl::MutexLock lock(&mu_);
  for (Lane* const lane : {&outward_, &inward_}) {
    // And once more, for what is left at the end.
    lane->ring_size =
        std::min(blocks * layout_.num_layers, kMostRingMoves) + blocks;
    BATON_ASSIGN_OR_RETURN(lane->ring, ListOf(lane->ring_size));
  }
  BATON_ASSIGN_OR_RETURN(step_moves_.apart, ListOf(blocks));
  step_moves_.list = step_moves_.apart.as<PageMove>();
  return absl::OkStatus();
}

RankKvStage::~RankKvStage() {
  absl::MutexLock lock(&mu_);
  outward_.stream.Wait();
  inward_.stream.Wait();
}

void RankKvStage::Fill(bool inward, absl::Span<const StagedBlock> blocks,
                       Moves& moves) {
  moves.count = static_cast<int32_t>(blocks.size());
  for (int32_t i = 0; i < moves.count; ++i) {
    const StagedBlock& b = blocks[i];
    CHECK(b.block >= 0 && b.block < layout_.num_blocks) << b.block;
    CHECK(b.staged >= 0 && b.staged < staged_.layout.num_blocks) << b.staged;
    moves.list[i] =
        inward ? PageMove{b.staged, b.block} : PageMove{b.block, b.staged};
  }
}

RankKvStage::Moves RankKvStage::MovesOf(bool inward,
                                        absl::Span<const StagedBlock> blocks) {
  Lane& lane = LaneOf(inward);
  const auto count = static_cast<int64_t>(blocks.size());
  // A list does not go over the end.
  uint64_t begin = lane.ring_end;
  const auto at = static_cast<int64_t>(begin % lane.ring_size);
  if (at + count > lane.ring_size) begin += lane.ring_size - at;
  CHECK_LE(count, lane.ring_size);
  if (lane.ring_begin == lane.ring_end) lane.ring_begin = begin;
  Moves moves;
  if (static_cast<int64_t>(begin + count - lane.ring_begin) <= lane.ring_size) {
    moves.list = lane.ring.as<PageMove>() + begin % lane.ring_size;
    moves.ring_end = lane.ring_end = begin + count;
  } else {
    auto apart = ListOf(count);
    CHECK(apart.ok()) << apart.status();
    moves.apart = *std::move(apart);
    moves.list = moves.apart.as<PageMove>();
  }
  Fill(inward, blocks, moves);
  return moves;
}

bool RankKvStage::CopyRuns(bool inward, int32_t first_layer, int32_t num_layers,
                           const Moves& moves, Stream& stream) {
  const int64_t page_bytes = layout_.page_bytes();
  // A part of each page is no run.
  if (staged_.host == nullptr || staged_.layout.page_bytes() != page_bytes) {
    return false;
  }
  struct Run {
    int32_t first = 0;
    int32_t pages = 0;
  };
  std::vector<Run> runs;
  for (int32_t i = 0; i < moves.count; ++i) {
    const bool goes_on = i > 0 &&
                         moves.list[i].from == moves.list[i - 1].from + 1 &&
                         moves.list[i].to == moves.list[i - 1].to + 1;
    if (!goes_on) runs.push_back({i, 0});
    ++runs.back().pages;
    if (static_cast<int64_t>(runs.size()) * num_layers > most_copy_runs_) {
      return false;
    }
  }
  for (int32_t layer = first_layer; layer < first_layer + num_layers; ++layer) {
    std::byte* const on_device = memory_ + layer * layout_.layer_bytes();
    std::byte* const on_host =
        staged_.host + layer * staged_.layout.layer_bytes();
    for (const Run& run : runs) {
      const auto [from, to] = moves.list[run.first];
      if (inward) {
        stream.CopyToDevice(on_device + to * page_bytes,
                            on_host + from * page_bytes,
                            run.pages * page_bytes);
      } else {
        stream.CopyToHost(on_host + to * page_bytes,
                          on_device + from * page_bytes,
                          run.pages * page_bytes);
      }
    }
  }
  return true;
}

RankKvStage::Ticket RankKvStage::Give(bool inward, int32_t first_layer,
                                      int32_t num_layers, const Moves& moves) {
  CHECK(first_layer >= 0 && num_layers > 0 &&
        first_layer + num_layers <= layout_.num_layers);
  CHECK_GT(moves.count, 0);
  Lane& lane = LaneOf(inward);
  if (!CopyRuns(inward, first_layer, num_layers, moves, lane.stream)) {
    RunCopyKernel(inward, first_layer, num_layers, moves, lane.stream);
  }
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

void RankKvStage::RunCopyKernel(bool inward, int32_t first_layer,
                                int32_t num_layers, const Moves& moves,
                                Stream& stream) {
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
  args.moves = moves.list;
  args.num_moves = moves.count;
  RunPageCopy(args, stream.handle());
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
  // What comes in goes to blocks that no step has, whichever runs.
  if (!inward) {
    compute_.Record(computed_);
    lane.stream.WaitFor(computed_);
  }
  Moves moves = MovesOf(inward, blocks);
  const Ticket ticket = Give(inward, first_layer, num_layers, moves);
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
    if (copy.moves.ring_end != 0) lane.ring_begin = copy.moves.ring_end;
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
  // A staged block stands for one block, so there is room.
  CHECK_LE(static_cast<int64_t>(step_blocks_.size()),
           staged_.layout.num_blocks);
  Fill(/*inward=*/false, step_blocks_, step_moves_);
}

void RankKvStage::CopyLayerOfStep(int32_t layer, const Event& written) {
  CHECK(copies_step());
  CHECK_EQ(layer, static_cast<int32_t>(step_tickets_.size()));
  absl::MutexLock lock(&mu_);
  outward_.stream.WaitFor(written);
  step_tickets_.push_back(
      Give(/*inward=*/false, layer, /*num_layers=*/1, step_moves_));
}

void RankKvStage::AwaitLayerOfStep(int32_t layer) {
  const std::shared_ptr<Event> done = EventOf(step_tickets_.at(layer));
  if (done != nullptr) done->Wait();
}

void RankKvStage::EndStep() {
  absl::MutexLock lock(&mu_);
  step_tickets_.clear();
  step_blocks_.clear();
}

}  // namespace baton::engine::cuda
