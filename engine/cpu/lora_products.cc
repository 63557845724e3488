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
    : kernels_(kernels), matmul_(matmul), loras_(loras) {}

void LoraProducts::ReserveNarrow(int32_t rank, int32_t rows) {
  for (std::optional<Activations>& narrow : narrow_) {
    if (!narrow.has_value() || narrow->columns() < rank) {
      narrow.emplace(WeightDtype::kBf16, rank);
    }
    narrow->Reserve(rows);
  }
}

void LoraProducts::SetRuns(std::vector<LoraRun> runs) {
  runs_ = std::move(runs);
  if (runs_.empty()) return;
  end_row_ = runs_.back().first_row + runs_.back().rows;
  adapter_of_.assign(end_row_, -1);
  ranks_.clear();
  for (const LoraRun& run : runs_) {
    std::fill_n(adapter_of_.begin() + run.first_row, run.rows, run.adapter);
    ranks_.push_back(loras_[run.adapter]->rank);
  }
  std::sort(ranks_.begin(), ranks_.end());
  ranks_.erase(std::unique(ranks_.begin(), ranks_.end()), ranks_.end());
  ReserveNarrow(ranks_.back(), end_row_);
}

void LoraProducts::Multiply(int32_t layer, LoraInput input,
                            const Activations& a) {
  const absl::Span<const LoraTarget> targets = TargetsOf(input);
  // Those of one rank go together.
  for (const int32_t rank : ranks_) {
    groups_.clear();
    for (const LoraRun& run : runs_) {
      const CpuLora& lora = *loras_[run.adapter];
      const PackedMatrix& down = lora.layers[layer].a_of(input);
      if (lora.rank == rank && down.panels() > 0) {
        groups_.push_back({run.first_row, run.rows, &down});
      }
    }
    if (groups_.empty()) continue;
    const int32_t rank_panels = rank / kPanelColumns;
    matmul_.RunGroups(a, groups_, rank_panels, [&](const Strip& strip) {
      const size_t part = strip.first_panel / rank_panels;
      const int32_t adapter = adapter_of_[strip.first_row];
      const float scale = loras_[adapter]
                              ->layers[layer]
                              .scale[static_cast<size_t>(targets[part])];
      for (int32_t i = 0; i < strip.rows; ++i) {
        kernels_.scale(strip.row(i), scale, rank);
        narrow_[part]->Write(kernels_, strip.first_row + i, /*first_column=*/0,
                             strip.row(i), rank);
      }
    });
  }
}

void LoraProducts::AddTo(int32_t layer, LoraTarget target, int32_t first_panel,
                         int32_t panels, int32_t column,
                         const Strip& strip) const {
  const Activations& narrow = *narrow_[PartOf(target)];
  const int32_t end = std::min(strip.first_row + strip.rows, end_row_);
  for (int32_t row = strip.first_row; row < end;) {
    const int32_t adapter = adapter_of_[row];
    int32_t next = row + 1;
    while (next < end && adapter_of_[next] == adapter) ++next;
    const int32_t first = std::exchange(row, next);
    if (adapter < 0) continue;
    const PackedMatrix& b = loras_[adapter]->layers[layer].b_of(target);
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
