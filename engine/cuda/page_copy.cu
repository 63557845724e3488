// The kernel of page_copy.h.
#include "engine/cuda/page_copy.h"

#include <algorithm>

#include "device_target.h"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kCopyThreads = 256;
// Few blocks, so that the multiprocessors are left to the step that runs
// beside: 32 x 256 threads with four pieces of 16 bytes each have 512 KiB under
// way, several times what a link of 64 GB/s needs to hide 2 us.
constexpr int64_t kMaxCopyBlocks = 32;
constexpr int32_t kCopyBytes = 16;
constexpr int32_t kPiecesAtOnce = 4;

BATON_KERNEL(kCopyThreads)
PageCopy(PageCopyArgs args) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const int64_t pieces = args.bytes / kCopyBytes;
  const int64_t pages = int64_t{args.num_moves} * args.layers;
  for (int64_t page = BlockX(); page < pages; page += args.blocks) {
    const int64_t layer = page / args.num_moves;
    const PageMove move = args.moves[page % args.num_moves];
    const std::byte* const from = args.from.first +
                                  layer * args.from.layer_bytes +
                                  move.from * args.from.page_bytes;
    std::byte* const to = args.to.first + layer * args.to.layer_bytes +
                          move.to * args.to.page_bytes;
    for (int64_t first = Thread(); first < pieces;
         first += int64_t{Threads()} * kPiecesAtOnce) {
      Word4 words[kPiecesAtOnce];
      BATON_UNROLL
      for (int32_t i = 0; i < kPiecesAtOnce; ++i) {
        const int64_t piece = first + int64_t{i} * Threads();
        if (piece < pieces) words[i] = Load16(from + piece * kCopyBytes);
      }
      BATON_UNROLL
      for (int32_t i = 0; i < kPiecesAtOnce; ++i) {
        const int64_t piece = first + int64_t{i} * Threads();
        if (piece < pieces) Store16(to + piece * kCopyBytes, words[i]);
      }
    }
  }
}

}  // namespace

void RunPageCopy(const PageCopyArgs& args, StreamHandle* stream) {
  PageCopyArgs with_blocks = args;
  const int64_t pages = int64_t{args.num_moves} * args.layers;
  with_blocks.blocks =
      static_cast<int32_t>(std::min<int64_t>(pages, kMaxCopyBlocks));
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(with_blocks.blocks);
  shape.threads = kCopyThreads;
  Launch(PageCopy, "page copy", shape, stream, with_blocks);
}

}  // namespace baton::engine::cuda
