#include "engine/kv_copy.h"

#include <cstdint>
#include <cstring>

#include "common/log.h"

namespace baton::engine {
void ForEachPage(const KvLayout& layout, absl::Span<const BlockId> blocks,
                 int64_t host_bytes,
                 absl::FunctionRef<void(int64_t page, int64_t at)> copy) {
  CHECK_EQ(host_bytes,
           layout.block_bytes() * static_cast<int64_t>(blocks.size()));
  int64_t at = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    for (BlockId block : blocks) {
      CHECK_GE(block, 0);
      CHECK_LT(block, layout.num_blocks);
      copy(layout.PageOffset(layer, block), at);
      at += layout.page_bytes();
    }
  }
}

HostKvCopy::HostKvCopy(const KvLayout& layout, absl::Span<std::byte> arena)
    : layout_(layout), arena_(arena) {
  CHECK_GE(static_cast<int64_t>(arena.size()), layout.total_bytes());
}

void HostKvCopy::ToHost(absl::Span<const BlockId> blocks,
                        absl::Span<std::byte> host) {
  const auto bytes = static_cast<size_t>(layout_.page_bytes());
  ForEachPage(layout_, blocks, static_cast<int64_t>(host.size()),
              [&](int64_t page, int64_t at) {
                std::memcpy(host.data() + at, arena_.data() + page, bytes);
              });
}

void HostKvCopy::FromHost(absl::Span<const std::byte> host,
                          absl::Span<const BlockId> blocks) {
  const auto bytes = static_cast<size_t>(layout_.page_bytes());
  ForEachPage(layout_, blocks, static_cast<int64_t>(host.size()),
              [&](int64_t page, int64_t at) {
                std::memcpy(arena_.data() + page, host.data() + at, bytes);
              });
}

}  // namespace baton::engine
