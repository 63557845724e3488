#include "engine/cpu/matmul.h"

#include <algorithm>

namespace baton::engine::cpu {
namespace {

// Panels that a kernel call covers: as wide as the widest tile.
constexpr int32_t kStripPanels = 4;
// Pairs of k that a kernel call covers when there are many rows, so that a
// strip of weights (128 KiB) stays in the second-level cache for all of them.
constexpr int32_t kBlockPairs = 512;
constexpr int32_t kManyRows = 24;
// Items per thread that even out what other processes take from a CPU.
constexpr int64_t kItemsPerThread = 4;
// Multiplications below which a thread is not worth waking.
constexpr int64_t kMinItemWork = 32 << 10;
// Rows that a strip is never cut below: each cut reads the weights again.
constexpr int32_t kMinItemRows = 48;

}  // namespace

void Matmul(const Kernels& kernels, ThreadTeam& team, const uint16_t* a,
            int64_t a_stride, int32_t rows, const PackedMatrix& b, float* c,
            int64_t c_stride) {
  if (rows == 0) return;
  const int64_t pairs = b.input_pairs();
  const int64_t wanted = kItemsPerThread * team.num_threads();
  // Work per item: at least kMinItemWork, so that tiny products run inline.
  const int64_t work_per_strip = 2 * pairs * rows * kStripPanels * 16;
  const int64_t strips_per_item =
      std::max<int64_t>(1, kMinItemWork / std::max<int64_t>(1, work_per_strip));
  const int64_t item_panels = strips_per_item * kStripPanels;
  const int64_t strip_items = (b.panels() + item_panels - 1) / item_panels;
  const int64_t row_items =
      std::clamp<int64_t>((wanted + strip_items - 1) / strip_items, 1,
                          std::max<int32_t>(1, rows / kMinItemRows));
  const int64_t block = rows >= kManyRows ? kBlockPairs : pairs;
  team.ParallelFor(strip_items * row_items, [&](int64_t item, int32_t) {
    const int64_t part = item % row_items;
    const int64_t row_begin = rows * part / row_items;
    const int64_t row_end = rows * (part + 1) / row_items;
    const int64_t first = item / row_items * item_panels;
    const int64_t end = std::min<int64_t>(first + item_panels, b.panels());
    for (int64_t panel = first; panel < end; panel += kStripPanels) {
      MatmulArgs args;
      args.a_stride = a_stride;
      args.rows = static_cast<int32_t>(row_end - row_begin);
      args.panel_stride = b.panel_stride();
      args.panels =
          static_cast<int32_t>(std::min<int64_t>(kStripPanels, end - panel));
      args.c = c + row_begin * c_stride + panel * kPanelColumns;
      args.c_stride = c_stride;
      for (int64_t k = 0; k < pairs; k += block) {
        args.a = a + row_begin * a_stride + 2 * k;
        args.b = b.panel(static_cast<int32_t>(panel)) + k * kPanelPairElements;
        args.k_pairs = static_cast<int32_t>(std::min(block, pairs - k));
        args.accumulate = k > 0;
        kernels.matmul(args);
      }
    }
  });
}

}  // namespace baton::engine::cpu
