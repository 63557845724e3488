#include "engine/cpu/lora_products.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/log.h"

namespace baton::engine::cpu {
namespace {

// Which of its input's targets it is.
size_t PartOf(LoraTarget target) {
  switch (target) {
    case LoraTarget::kQ:
    case LoraTarget::kO:
    case LoraTarget::kGate:
    case LoraTarget::kDown:
      return 0;
    case LoraTarget::kK:
    case LoraTarget::kUp:
      return 1;
    case LoraTarget::kV:
      return 2;
  }
  return 0;
}

}  // namespace

LoraProducts::LoraProducts(const Kernels& kernels, Matmul& matmul,
                           const CpuLoras& loras)
    : kernels_(kernels),
      matmul_(matmul),
      loras_(loras),
      narrow_{Activations(WeightDtype::kBf16, loras.rank),
              Activations(WeightDtype::kBf16, loras.rank),
              Activations(WeightDtype::kBf16, loras.rank)} {}

void LoraProducts::SetRuns(std::vector<LoraRun> runs) {
  runs_ = std::move(runs);
  if (runs_.empty()) return;
  end_row_ = runs_.back().first_row + runs_.back().rows;
  adapter_of_.assign(end_row_, -1);
  for (const LoraRun& run : runs_) {
    std::fill_n(adapter_of_.begin() + run.first_row, run.rows, run.adapter);
  }
  for (Activations& narrow : narrow_) narrow.Reserve(end_row_);
}

void LoraProducts::Multiply(int32_t layer, LoraInput input,
                            const Activations& a) {
  groups_.clear();
  for (const LoraRun& run : runs_) {
    const PackedMatrix& down = loras_.adapters[run.adapter][layer].a_of(input);
    if (down.panels() > 0) groups_.push_back({run.first_row, run.rows, &down});
  }
  if (groups_.empty()) return;
  const int32_t rank_panels = loras_.rank / kPanelColumns;
  const absl::Span<const LoraTarget> targets = TargetsOf(input);
  matmul_.RunGroups(a, groups_, rank_panels, [&](const Strip& strip) {
    const size_t part = strip.first_panel / rank_panels;
    const int32_t adapter = adapter_of_[strip.first_row];
    const float scale = loras_.adapters[adapter][layer]
                            .scale[static_cast<size_t>(targets[part])];
    for (int32_t i = 0; i < strip.rows; ++i) {
      kernels_.scale(strip.row(i), scale, loras_.rank);
      narrow_[part].Write(kernels_, strip.first_row + i, /*first_column=*/0,
                          strip.row(i), loras_.rank);
    }
  });
}

void LoraProducts::AddTo(int32_t layer, LoraTarget target, int32_t first_panel,
                         int32_t panels, int32_t column,
                         const Strip& strip) const {
  const Activations& narrow = narrow_[PartOf(target)];
  const int32_t end = std::min(strip.first_row + strip.rows, end_row_);
  for (int32_t row = strip.first_row; row < end;) {
    const int32_t adapter = adapter_of_[row];
    int32_t next = row + 1;
    while (next < end && adapter_of_[next] == adapter) ++next;
    const int32_t first = std::exchange(row, next);
    if (adapter < 0) continue;
    const PackedMatrix& b = loras_.adapters[adapter][layer].b_of(target);
    if (b.panels() == 0) continue;
    DCHECK_EQ(first_panel % b.unit(), 0);
    DCHECK_EQ(panels % b.unit(), 0);
    for (int32_t panel = 0; panel < panels; panel += b.unit()) {
      MatmulArgs args;
      args.a = narrow.bf16(first);
      args.a_stride = narrow.stride();
      args.rows = next - first;
      args.b = reinterpret_cast<const uint16_t*>(b.panel(first_panel + panel));
      args.panel_stride = PackedMatrix::kStepBytes / 2;
      args.pair_stride = b.step_stride() / 2;
      args.panels = b.unit();
      args.k_pairs = b.input_pairs();
      args.accumulate = true;
      args.c =
          strip.row(first - strip.first_row) + column + panel * kPanelColumns;
      args.c_stride = strip.stride;
      kernels_.matmul(args);
    }
  }
}

}  // namespace baton::engine::cpu
