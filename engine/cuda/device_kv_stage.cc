#include "engine/cuda/device_kv_stage.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::engine::cuda {

// Of each device in turn.
void DeviceKvCopy::ToHost(absl::Span<const BlockId> blocks,
                          absl::Span<std::byte> host) {
  const auto share = static_cast<int64_t>(host.size() / devices_.size());
  std::byte* to = host.data();
  for (const DeviceKv& kv : devices_) {
    UseDevice(kv.device);
    ForEachPage(kv.layout, blocks, share, [&](int64_t page, int64_t at) {
      kv.compute->CopyToHost(to + at, kv.memory + page, kv.layout.page_bytes());
    });
    to += share;
  }
  for (const DeviceKv& kv : devices_) kv.compute->Wait();
}

void DeviceKvCopy::FromHost(absl::Span<const std::byte> host,
                            absl::Span<const BlockId> blocks) {
  const auto share = static_cast<int64_t>(host.size() / devices_.size());
  const std::byte* from = host.data();
  for (const DeviceKv& kv : devices_) {
    UseDevice(kv.device);
    ForEachPage(kv.layout, blocks, share, [&](int64_t page, int64_t at) {
      kv.compute->CopyToDevice(kv.memory + page, from + at,
                               kv.layout.page_bytes());
    });
    from += share;
  }
  for (const DeviceKv& kv : devices_) kv.compute->Wait();
}

absl::StatusOr<std::unique_ptr<DeviceKvStage>> DeviceKvStage::Create(
    const KvLayout& layout, std::vector<DeviceKv> devices, int64_t bytes,
    bool shared) {
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
  return std::unique_ptr<DeviceKvStage>(new DeviceKvStage(
      std::move(devices), std::move(arena), std::move(pinned), staged));
}

DeviceKvStage::DeviceKvStage(std::vector<DeviceKv> devices,
                             cpu::MemoryArena arena, PinnedMemory pinned,
                             const KvLayout& staged_layout)
    : arena_(std::move(arena)),
      pinned_(std::move(pinned)),
      host_{staged_layout, arena_.memory(), arena_.descriptor()},
      copy_(devices) {
  StagedPages staged;
  staged.layout = staged_layout;
  staged.memory = pinned_.device();
  for (const DeviceKv& kv : devices) {
    UseDevice(kv.device);
    ranks_.push_back(std::make_unique<RankKvStage>(
        kv.device, kv.layout, kv.memory, *kv.compute, staged, [waker = waker_] {
          absl::MutexLock lock(&waker->mu);
          if (waker->wake) waker->wake();
        }));
    staged.page_offset += kv.layout.page_bytes();
  }
  CHECK_EQ(staged.page_offset, staged_layout.page_bytes());
}

KvStage::Ticket DeviceKvStage::Begin(bool to_device, int32_t first_layer,
                                     int32_t num_layers,
                                     absl::Span<const StagedBlock> blocks) {
  const Ticket ticket =
      ranks_[0]->Begin(to_device, first_layer, num_layers, blocks);
  for (size_t i = 1; i < ranks_.size(); ++i) {
    const Ticket other =
        ranks_[i]->Begin(to_device, first_layer, num_layers, blocks);
    CHECK_EQ(other.number, ticket.number) << "devices were asked for different";
  }
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

bool DeviceKvStage::Done(Ticket ticket) {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [&](const auto& rank) { return rank->Done(ticket); });
}

void DeviceKvStage::WithStep(std::vector<StagedBlock> blocks) {
  for (const auto& rank : ranks_) rank->WithStep(blocks);
}

void DeviceKvStage::SetWake(std::function<void()> wake) {
  absl::MutexLock lock(&waker_->mu);
  waker_->wake = std::move(wake);
}

}  // namespace baton::engine::cuda
