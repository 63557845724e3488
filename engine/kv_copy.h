// Copies blocks of an engine's KV to the host's memory and back, bit for bit: a
// seam for engines whose KV lies elsewhere.
//
// Used by the worker's loop thread only, between two steps; a copy is done when
// the call returns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/kv_layout.h"

namespace baton::engine {

class KvCopy {
 public:
  virtual ~KvCopy() = default;
  // All layers of `blocks`, in an order of its own, into `host`.
  // REQUIRES: blocks in range; host.size() is their block_bytes() together.
  virtual void ToHost(absl::Span<const BlockId> blocks,
                      absl::Span<std::byte> host) = 0;
  // What ToHost wrote of as many blocks, into these.
  virtual void FromHost(absl::Span<const std::byte> host,
                        absl::Span<const BlockId> blocks) = 0;
};

// Calls copy(where a page lies in the arena, where it lies on the host) for
// each page of `blocks`: the order that copies have on the host. REQUIRES: as
// KvCopy::ToHost.
void ForEachPage(const KvLayout& layout, absl::Span<const BlockId> blocks,
                 int64_t host_bytes,
                 absl::FunctionRef<void(int64_t page, int64_t at)> copy);

// Of KV that lies in the host's memory, as `layout` says. The arena outlives
// it.
class HostKvCopy final : public KvCopy {
 public:
  HostKvCopy(const KvLayout& layout, absl::Span<std::byte> arena);

  void ToHost(absl::Span<const BlockId> blocks,
              absl::Span<std::byte> host) override;
  void FromHost(absl::Span<const std::byte> host,
                absl::Span<const BlockId> blocks) override;

 private:
  const KvLayout layout_;
  const absl::Span<std::byte> arena_;
};

}  // namespace baton::engine
