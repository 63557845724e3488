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

// Where pages lie: page p of layer l begins at first + l * layer_bytes +
// p * page_bytes.
struct PagesOf {
  std::byte* first = nullptr;
  int64_t layer_bytes = 0;
  int64_t page_bytes = 0;
};

struct PageCopyArgs {
  PagesOf from;
  PagesOf to;
  // From the beginning of each page; a multiple of 16.
  int64_t bytes = 0;
  int32_t layers = 0;
  const PageMove* moves = nullptr;
  int32_t num_moves = 0;
  int32_t blocks = 0;  // RunPageCopy sets it
};

// REQUIRES: layers and moves; pages aligned to 16 bytes; no page is both read
// and written.
void RunPageCopy(const PageCopyArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
