#include "engine/cuda/device_kv_stage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/page_copy.h"
#include "engine/cuda/shard.h"

namespace baton::engine::cuda {
namespace {

constexpr char kPurpose[] = "memory for staged KV blocks (kv_staging_bytes)";

// Devices, from the first on, that have all of each page among them.
size_t PartsOf(const std::vector<DeviceKv>& devices) {
  return RanksHaveWholePages(devices.at(0).layout) ? 1 : devices.size();
}

}  // namespace

DeviceKvCopy::DeviceKvCopy(std::vector<DeviceKv> devices)
    : devices_(std::move(devices)),
      page_bytes_(devices_.at(0).layout.page_bytes()),
      parts_(PartsOf(devices_)) {
  for (const DeviceKv& kv : devices_) {
    CHECK_EQ(kv.layout.page_bytes(), page_bytes_);
  }
}

absl::Status DeviceKvCopy::TakeMemory(int64_t bytes_at_once) {
  pages_at_once_ = std::max<int64_t>(1, bytes_at_once / page_bytes_);
  for (const DeviceKv& kv : devices_) {
    UseDevice(kv.device);
    Way& way = ways_.emplace_back();
    BATON_ASSIGN_OR_RETURN(
        way.pages,
        PinnedBuffer::Allocate(pages_at_once_ * page_bytes_, kPurpose));
    BATON_ASSIGN_OR_RETURN(
        way.moves, PinnedBuffer::Allocate(
                       pages_at_once_ * int64_t{sizeof(PageMove)}, kPurpose));
  }
  return absl::OkStatus();
}

void DeviceKvCopy::ForEachPart(absl::Span<const BlockId> blocks,
                               int64_t host_bytes,
                               absl::FunctionRef<void(const Part& part)> copy) {
  const int32_t num_layers = devices_[0].layout.num_layers;
  const auto count = static_cast<int64_t>(blocks.size());
  CHECK_EQ(host_bytes,
           page_bytes_ * num_layers * count * static_cast<int64_t>(parts_));
  CHECK_GT(pages_at_once_, 0) << "TakeMemory comes first";
  if (count == 0) return;
  const auto layers_at_once = static_cast<int32_t>(
      std::clamp<int64_t>(pages_at_once_ / count, 1, num_layers));
  for (int32_t layer = 0; layer < num_layers; layer += layers_at_once) {
    for (int64_t i = 0; i < count; i += pages_at_once_) {
      Part part;
      part.first_layer = layer;
      part.layers = std::min(layers_at_once, num_layers - layer);
      part.blocks = blocks.subspan(i, pages_at_once_);
      part.first = layer * count + i;
      copy(part);
    }
  }
  UseDevice(devices_[0].device);
}

void DeviceKvCopy::Begin(bool to_host, size_t device, const Part& part) {
  const DeviceKv& kv = devices_[device];
  Way& way = ways_[device];
  PageMove* const moves = way.moves.as<PageMove>();
  const auto count = static_cast<int32_t>(part.blocks.size());
  for (int32_t i = 0; i < count; ++i) {
    const BlockId block = part.blocks[i];
    CHECK(block >= 0 && block < kv.layout.num_blocks) << block;
    moves[i] = to_host ? PageMove{block, i} : PageMove{i, block};
  }
  const PagesOf on_device = {
      kv.memory + part.first_layer * kv.layout.layer_bytes(),
      kv.layout.layer_bytes(), page_bytes_};
  const PagesOf on_way = {way.pages.as<std::byte>(), count * page_bytes_,
                          page_bytes_};
  PageCopyArgs args;
  args.from = to_host ? on_device : on_way;
  args.to = to_host ? on_way : on_device;
  args.bytes = page_bytes_;
  args.layers = part.layers;
  args.moves = moves;
  args.num_moves = count;
  UseDevice(kv.device);
  RunPageCopy(args, kv.compute->handle());
}

// Of each device in turn.
void DeviceKvCopy::ToHost(absl::Span<const BlockId> blocks,
                          absl::Span<std::byte> host) {
  const size_t share = host.size() / parts_;
  ForEachPart(blocks, static_cast<int64_t>(host.size()), [&](const Part& part) {
    const size_t bytes = part.layers * part.blocks.size() * page_bytes_;
    for (size_t d = 0; d < parts_; ++d) {
      Begin(/*to_host=*/true, d, part);
    }
    for (size_t d = 0; d < parts_; ++d) {
      devices_[d].compute->Wait();
      std::memcpy(host.data() + d * share + part.first * page_bytes_,
                  ways_[d].pages.data(), bytes);
    }
  });
}

void DeviceKvCopy::FromHost(absl::Span<const std::byte> host,
                            absl::Span<const BlockId> blocks) {
  const size_t share = host.size() / parts_;
  ForEachPart(blocks, static_cast<int64_t>(host.size()), [&](const Part& part) {
    const size_t bytes = part.layers * part.blocks.size() * page_bytes_;
    for (size_t d = 0; d < devices_.size(); ++d) {
      std::memcpy(ways_[d].pages.data(),
                  host.data() + d % parts_ * share + part.first * page_bytes_,
                  bytes);
      Begin(/*to_host=*/false, d, part);
    }
    for (const DeviceKv& kv : devices_) kv.compute->Wait();
  });
}

absl::StatusOr<StagedArena> StagedArena::Allocate(Kind kind,
                                                  const KvLayout& layout) {
  StagedArena arena(layout);
  const int64_t bytes = layout.total_bytes();
  if (kind == Kind::kDevice) {
    UseDevice(0);
    BATON_ASSIGN_OR_RETURN(
        arena.on_device_,
        DeviceBuffer::Allocate(bytes + kSpareBytes, kPurpose));
    return arena;
  }
  BATON_ASSIGN_OR_RETURN(arena.host_,
                         kind == Kind::kSharedHost
                             ? cpu::MemoryArena::AllocateShared(bytes, kPurpose)
                             : cpu::MemoryArena::Allocate(bytes, kPurpose));
  BATON_ASSIGN_OR_RETURN(arena.pinned_,
                         PinnedMemory::Pin(arena.host_->memory(), kPurpose));
  return arena;
}

StagedMemory StagedArena::memory() const {
  StagedMemory staged;
  staged.layout = layout_;
  if (host_.has_value()) {
    staged.memory = host_->memory();
    staged.descriptor = host_->descriptor();
  } else {
    const int64_t bytes = layout_.total_bytes();
    staged.memory = {on_device_.data(), static_cast<size_t>(bytes)};
    staged.on_device = true;
    staged.spare = {on_device_.data() + bytes, size_t{kSpareBytes}};
  }
  return staged;
}

std::byte* StagedArena::device() const {
  return host_.has_value() ? pinned_.device() : on_device_.data();
}

absl::StatusOr<std::unique_ptr<DeviceKvStage>> DeviceKvStage::Create(
    const KvLayout& layout, std::vector<DeviceKv> devices, int64_t bytes,
    StagedArena::Kind kind, int32_t most_copy_runs) {
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
  std::unique_ptr<PageHashes> hashes;
  if (kind == StagedArena::Kind::kDevice) {
    BATON_ASSIGN_OR_RETURN(hashes, PageHashes::Create(0));
  }
  BATON_ASSIGN_OR_RETURN(StagedArena arena,
                         StagedArena::Allocate(kind, staged));
  std::unique_ptr<DeviceKvStage> stage(new DeviceKvStage(
      std::move(devices), std::move(arena), std::move(hashes), most_copy_runs));
  BATON_RETURN_IF_ERROR(stage->copy_.TakeMemory());
  for (const auto& rank : stage->ranks_) {
    BATON_RETURN_IF_ERROR(rank->TakeMemory());
  }
  return stage;
}

DeviceKvStage::DeviceKvStage(std::vector<DeviceKv> devices, StagedArena arena,
                             std::unique_ptr<PageHashes> hashes,
                             int32_t most_copy_runs)
    : arena_(std::move(arena)),
      staged_(arena_.memory()),
      hashes_(std::move(hashes)),
      copy_(devices),
      senders_(PartsOf(devices)) {
  StagedPages staged;
  staged.layout = staged_.layout;
  staged.memory = arena_.device();
  if (!staged_.on_device) staged.host = staged_.memory.data();
  for (const DeviceKv& kv : devices) {
    UseDevice(kv.device);
    ranks_.push_back(std::make_unique<RankKvStage>(
        kv.device, kv.layout, kv.memory, *kv.compute, staged, most_copy_runs,
        [waker = waker_] {
          absl::MutexLock lock(&waker->mu);
          if (waker->wake) waker->wake();
        }));
    if (!RanksHaveWholePages(kv.layout)) {
      staged.page_offset += kv.layout.page_bytes();
    }
  }
  CHECK_EQ(static_cast<int64_t>(senders_) * devices[0].layout.page_bytes(),
           staged_.layout.page_bytes());
}

KvStage::Ticket DeviceKvStage::Begin(bool inward, int32_t first_layer,
                                     int32_t num_layers,
                                     absl::Span<const StagedBlock> blocks) {
  const Ticket ticket =
      ranks_[0]->Begin(inward, first_layer, num_layers, blocks);
  for (const auto& rank : RanksOf(inward).subspan(1)) {
    const Ticket other = rank->Begin(inward, first_layer, num_layers, blocks);
    CHECK_EQ(other.number, ticket.number) << "devices were asked for different";
  }
  return ticket;
}

KvStage::Ticket DeviceKvStage::CopyOut(int32_t first_layer, int32_t num_layers,
                                       absl::Span<const StagedBlock> blocks) {
  return Begin(/*inward=*/false, first_layer, num_layers, blocks);
}

KvStage::Ticket DeviceKvStage::CopyIn(int32_t first_layer, int32_t num_layers,
                                      absl::Span<const StagedBlock> blocks) {
  return Begin(/*inward=*/true, first_layer, num_layers, blocks);
}

bool DeviceKvStage::Done(Ticket ticket) {
  const auto ranks = RanksOf(ticket.inward);
  return std::all_of(ranks.begin(), ranks.end(),
                     [&](const auto& rank) { return rank->Done(ticket); });
}

void DeviceKvStage::WithStep(std::vector<StagedBlock> blocks) {
  for (const auto& rank : RanksOf(/*inward=*/false)) rank->WithStep(blocks);
}

std::vector<uint64_t> DeviceKvStage::HashPages(
    absl::Span<const absl::Span<const std::byte>> runs, int64_t page_bytes,
    uint64_t first_seed) {
  CHECK(hashes_ != nullptr) << "the CPU reads these blocks by itself";
  return hashes_->Hash(runs, page_bytes, first_seed);
}

void DeviceKvStage::SelectDevice() {
  UseDevice(0);
  // Before CUDA 12 the thread has it from the first call on that needs it.
  FreeDeviceBytes();
}

void DeviceKvStage::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&waker_->mu);
  waker_->wake = std::move(wake);
}

}  // namespace baton::engine::cuda
