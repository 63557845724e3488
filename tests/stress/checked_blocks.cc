#include "tests/stress/checked_blocks.h"

#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/stress/notes.h"

namespace baton::stress {
namespace {

using kv_transfer::kUntouched;

std::string Describe(const std::optional<CheckedBlocks::Owner>& owner) {
  if (!owner.has_value()) return "nobody";
  return absl::StrCat("transfer ", owner->first, " generation ", owner->second);
}

}  // namespace

CheckedBlocks::CheckedBlocks(int32_t num_layers, int32_t num_blocks,
                             int64_t page_bytes)
    : memory_(num_layers, num_blocks, page_bytes),
      pool_(num_blocks),
      untouched_(page_bytes, kUntouched),
      owners_(num_blocks) {}

std::optional<scheduling::PooledBlocks> CheckedBlocks::Take(Owner owner,
                                                            int32_t count) {
  auto blocks = pool_.Allocate(count);
  if (!blocks.has_value()) return std::nullopt;
  for (BlockId block : blocks->ids()) {
    for (int32_t layer = 0; layer < memory_.geometry().num_layers; ++layer) {
      const auto page = memory_.Page(layer, block);
      if (std::memcmp(page.data(), untouched_.data(), page.size()) != 0) {
        Violate(absl::StrCat("block ", block, " of layer ", layer,
                             " was written while nobody had it"));
      }
    }
  }
  absl::MutexLock lock(&mu_);
  for (BlockId block : blocks->ids()) owners_[block] = owner;
  return blocks;
}

void CheckedBlocks::Give(scheduling::PooledBlocks blocks) {
  for (BlockId block : blocks.ids()) {
    for (int32_t layer = 0; layer < memory_.geometry().num_layers; ++layer) {
      const auto page = memory_.Page(layer, block);
      std::memcpy(page.data(), untouched_.data(), page.size());
    }
  }
  absl::MutexLock lock(&mu_);
  for (BlockId block : blocks.ids()) owners_[block] = std::nullopt;
}

void CheckedBlocks::CheckWrite(Owner owner, absl::Span<const std::byte> bytes) {
  const kv_transfer::KvGeometry& kv = memory_.geometry();
  const int64_t begin =
      (bytes.data() - kv.memory.data()) % kv.layer_stride_bytes;
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  absl::MutexLock lock(&mu_);
  for (int64_t at = begin; at < end; at += kv.page_bytes) {
    const auto block = static_cast<BlockId>(at / kv.page_bytes);
    if (owners_[block] == owner) continue;
    Violate(absl::StrCat("a write of ", Describe(owner), " into block ", block,
                         ", which belongs to ", Describe(owners_[block])));
  }
}

}  // namespace baton::stress
