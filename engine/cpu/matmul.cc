#include "engine/cpu/matmul.h"

#include <algorithm>

#include "common/log.h"
#include "engine/mxfp4.h"

namespace baton::engine::cpu {
namespace {

// With this many rows, a product is bound neither by its weights' way from
// memory nor by arithmetic alone. Calls are then cut along k, and each fetches
// the next one's weights while it computes: at most 8 panels of 20 KiB, which
// both stay in the second-level cache until all rows have used them. Smaller
// pieces lose more by storing and loading sums than they gain. Fewer rows wait
// for memory anyway; bf16 has twice the bytes to wait for.
constexpr int32_t kManyRowsBf16 = 8;
constexpr int32_t kManyRowsQuantized = 4;
constexpr int32_t kBlockBytesPerPanel = 20 << 10;
// MXFP4 is turned into bfloat16 block by block: with few rows, blocks that stay
// in the first-level cache.
constexpr int32_t kFewUnpackedBytesPerPanel = 4 << 10;
// Rows of a strip: its sums stay in the second-level cache.
constexpr int32_t kStripRows = 256;
// Rows whose strips are all computed before the next rows' ones: their
// activations stay in the last-level cache.
constexpr int32_t kBlockRows = 512;

int32_t CeilDiv(int32_t n, int32_t d) { return (n + d - 1) / d; }

// A unit of panels, `groups` of its groups from `first` on.
UnpackArgs Mxfp4Part(const PackedMatrix& b, int32_t panel, int32_t first,
                     int32_t groups) {
  const int64_t steps = b.steps() / b.layout().exponents();
  UnpackArgs part;
  part.b = reinterpret_cast<const uint8_t*>(b.panel(panel)) +
           first * steps * b.step_stride();
  part.step_stride = b.step_stride();
  part.exponents = b.exponents(panel) + first * b.exponent_stride();
  part.exponent_stride = b.exponent_stride();
  part.panels = b.unit();
  part.groups = groups;
  return part;
}

}  // namespace

Matmul::Matmul(const Kernels& kernels, ThreadTeam& team)
    : kernels_(kernels),
      team_(team),
      scratch_(team.num_threads()),
      unpacked_(team.num_threads()) {}

void Matmul::Run(const Activations& a, int32_t first_row, int32_t rows,
                 const PackedMatrix& b, int32_t strip_panels, Finish finish) {
  const RowGroup group = {first_row, rows, &b};
  RunGroups(a, absl::MakeConstSpan(&group, 1), strip_panels, finish);
}

void Matmul::RunGroups(const Activations& a, absl::Span<const RowGroup> groups,
                       int32_t strip_panels, Finish finish) {
  const int64_t stride = int64_t{strip_panels} * kPanelColumns;
  int32_t most_rows = 0;
  int64_t items = 0;
  first_items_.clear();
  for (const RowGroup& group : groups) {
    CHECK_EQ(a.quantized(), TakesInt8(group.b->dtype()));
    CHECK_EQ(a.columns(), group.b->inputs());
    CHECK_EQ(strip_panels % group.b->unit(), 0);
    CHECK_EQ(group.first_panel % group.b->unit(), 0);
    CHECK_LE(group.end_panel(), group.b->panels());
    CHECK_EQ(group.end_panel() - group.first_panel,
             groups[0].end_panel() - groups[0].first_panel);
    first_items_.push_back(items);
    items +=
        int64_t{CeilDiv(group.end_panel() - group.first_panel, strip_panels)} *
        CeilDiv(group.rows, kStripRows);
    most_rows = std::max(most_rows, group.rows);
  }
  if (items == 0) return;
  for (AlignedBuffer<float>& scratch : scratch_) {
    scratch.Reserve(std::min(most_rows, kStripRows) * stride);
  }
  // Items in this order: groups, blocks of rows, strips, parts of a block.
  team_.ParallelFor(items, [&](int64_t item, int32_t thread) {
    const auto after =
        std::upper_bound(first_items_.begin(), first_items_.end(), item);
    const auto index = static_cast<int32_t>(after - first_items_.begin()) - 1;
    const RowGroup& group = groups[index];
    item -= first_items_[index];
    const PackedMatrix& b = *group.b;
    const int32_t first_row = group.first_row;
    const int32_t rows = group.rows;
    const int32_t end_panel = group.end_panel();
    const int32_t strips = CeilDiv(end_panel - group.first_panel, strip_panels);
    const int32_t parts = CeilDiv(rows, kStripRows);
    const int32_t parts_per_block = kBlockRows / kStripRows;
    const int64_t items_per_block = int64_t{strips} * parts_per_block;
    const int32_t first_part =
        static_cast<int32_t>(item / items_per_block) * parts_per_block;
    const int32_t block_parts = std::min(parts_per_block, parts - first_part);
    const int32_t in_block = static_cast<int32_t>(item % items_per_block);
    const int32_t part = first_part + in_block % block_parts;
    Strip strip;
    const int32_t begin = static_cast<int32_t>(int64_t{rows} * part / parts);
    strip.first_row = first_row + begin;
    strip.rows =
        static_cast<int32_t>(int64_t{rows} * (part + 1) / parts) - begin;
    strip.first_panel =
        group.first_panel + in_block / block_parts * strip_panels;
    strip.panels = std::min(strip_panels, end_panel - strip.first_panel);
    strip.values = scratch_[thread].data();
    strip.stride = stride;
    strip.thread = thread;
    strip.group = index;
    // Threads take strips in turn.
    const int32_t next = strip.first_panel + team_.num_threads() * strip_panels;
    ComputeStrip(a, b, strip, next);
    finish(strip);
  });
}

void Matmul::ComputeStrip(const Activations& a, const PackedMatrix& b,
                          const Strip& strip, int32_t next_panel) {
  const bool mxfp4 = b.dtype() == WeightDtype::kMxfp4;
  if (mxfp4 && strip.rows <= kFewMxfp4Rows &&
      kernels_.matmul_mxfp4 != nullptr) {
    return ComputeFewMxfp4(a, b, strip);
  }
  const bool bf16 = !TakesInt8(b.dtype());  // what kernels take
  const bool many = strip.rows >= (bf16 ? kManyRowsBf16 : kManyRowsQuantized);
  // What k is counted in: steps, or groups of them.
  const int32_t total = mxfp4  ? b.layout().exponents()
                        : bf16 ? b.input_pairs()
                               : b.groups();
  const int64_t steps = b.steps() / total;
  // Blocks of about the same length. Of MXFP4 it is that of what it becomes.
  const int64_t bytes_per_panel =
      total * steps * PackedMatrix::kStepBytes * (mxfp4 ? 4 : 1);
  const int64_t block_bytes = many    ? kBlockBytesPerPanel
                              : mxfp4 ? kFewUnpackedBytesPerPanel
                                      : bytes_per_panel;
  const auto blocks =
      static_cast<int32_t>((bytes_per_panel + block_bytes - 1) / block_bytes);
  const int32_t block = CeilDiv(total, blocks);
  const int32_t pairs = mxfp4 ? static_cast<int32_t>(kMxfp4Group) / 2 : 1;
  if (mxfp4) {
    unpacked_[strip.thread].Reserve(int64_t{block} * pairs * b.unit() *
                                    kPanelPairElements);
  }
  const auto weights_at = [&](int32_t panel, int32_t k) {
    const int64_t bytes_per_k = steps * b.step_stride();
    return NextWeights{
        reinterpret_cast<const char*>(b.panel(panel)) + k * bytes_per_k,
        std::min(block, total - k) * bytes_per_k};
  };
  // What is read after the block of `panel` at `k`.
  const auto next_of = [&](int32_t panel, int32_t k) -> NextWeights {
    if (!many && !mxfp4) return {};
    if (k + block < total) return weights_at(panel, k + block);
    panel += b.unit();
    if (panel >= strip.first_panel + strip.panels) panel = next_panel;
    return panel < b.panels() ? weights_at(panel, 0) : NextWeights{};
  };
  for (int32_t first = 0; first < strip.panels; first += b.unit()) {
    const int32_t panel = strip.first_panel + first;
    float* const c = strip.values + first * kPanelColumns;
    for (int32_t k = 0; k < total; k += block) {
      const int32_t count = std::min(block, total - k);
      const char* const weights = weights_at(panel, k).data;
      if (bf16) {
        MatmulArgs args;
        args.a = a.bf16(strip.first_row) + int64_t{2} * k * pairs;
        args.a_stride = a.stride();
        args.rows = strip.rows;
        args.b = reinterpret_cast<const uint16_t*>(weights);
        if (mxfp4) {
          UnpackArgs unpack = Mxfp4Part(b, panel, k, count);
          unpack.out = unpacked_[strip.thread].data();
          kernels_.unpack_mxfp4(unpack);
          args.b = unpack.out;
        }
        args.panel_stride = PackedMatrix::kStepBytes / 2;
        args.pair_stride = b.step_stride() / 2;
        args.panels = b.unit();
        args.k_pairs = count * pairs;
        args.accumulate = k > 0;
        args.c = c;
        args.c_stride = strip.stride;
        args.next = next_of(panel, k);
        kernels_.matmul(args);
        continue;
      }
      QuantMatmulArgs args;
      args.a = a.int8(strip.first_row) + int64_t{k} * kGroupInputs;
      args.a_stride = a.stride();
      args.a_scales = a.scales(strip.first_row) + k;
      args.a_sums = a.sums(strip.first_row) + k;
      args.group_stride = a.groups();
      args.rows = strip.rows;
      args.b = reinterpret_cast<const uint8_t*>(weights);
      args.panel_stride = PackedMatrix::kStepBytes;
      args.step_stride = b.step_stride();
      args.panels = b.unit();
      args.groups = count;
      args.accumulate = k > 0;
      args.last = k + count == total;
      args.c = c;
      args.c_stride = strip.stride;
      args.next = next_of(panel, k);
      args.column_scales = b.column_scales(panel);
      if (b.dtype() == WeightDtype::kInt8) {
        kernels_.matmul_int8(args);
      } else {
        args.group_codes = b.group_codes(panel) + k * b.group_code_stride();
        args.code_panel_stride = kPanelColumns;
        args.code_group_stride = b.group_code_stride();
        kernels_.matmul_int4(args);
      }
    }
  }
}

void Matmul::ComputeFewMxfp4(const Activations& a, const PackedMatrix& b,
                             const Strip& strip) const {
  for (int32_t first = 0; first < strip.panels; first += b.unit()) {
    Mxfp4MatmulArgs args;
    args.a = a.bf16(strip.first_row);
    args.a_stride = a.stride();
    args.rows = strip.rows;
    args.b = Mxfp4Part(b, strip.first_panel + first, /*first=*/0,
                       b.layout().exponents());
    args.c = strip.values + first * kPanelColumns;
    args.c_stride = strip.stride;
    kernels_.matmul_mxfp4(args);
  }
}

}  // namespace baton::engine::cpu
