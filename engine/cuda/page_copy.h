// Copies KV pages between a device's memory and memory of the host that the
// device can reach (PinnedMemory): one kernel for many pages, wherever they
// lie, as a copy by the runtime for each of them would take longer to ask for
// than to do.
//
// Pure host code but for RunPageCopy, which gives the kernel to a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/ids.h"
#include "engine/cuda/device_runtime.h"

namespace baton::engine::cuda {

// A page of the same number in each layer of both arenas.
struct PageMove {
  BlockId from = 0;
  BlockId to = 0;
};

struct PageCopyArgs {
  // Where page 0 of the first layer begins, and how far the next layer is.
  const std::byte* from = nullptr;
  int64_t from_layer_bytes = 0;
  std::byte* to = nullptr;
  int64_t to_layer_bytes = 0;
  int64_t page_bytes = 0;  // a multiple of 16
  int32_t layers = 0;
  const PageMove* moves = nullptr;
  int32_t num_moves = 0;
  int32_t blocks = 0;  // RunPageCopy sets it
};

// REQUIRES: layers and moves; arenas aligned to 16 bytes; no page is both read
// and written.
void RunPageCopy(const PageCopyArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
