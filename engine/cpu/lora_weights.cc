#include "engine/cpu/lora_weights.h"

#include <optional>
#include <utility>

#include "common/status_macros.h"

namespace baton::engine::cpu {
namespace {

// A matrix that is to be packed, and where its view goes.
struct Place {
  PackedShape shape;
  std::vector<PanelSource> sources;
  PackedMatrix* matrix = nullptr;
};

// Panels of a unit, of a matrix whose parts have `panels` each.
int32_t UnitOf(int32_t panels) {
  int32_t unit = kWideUnit;
  while (panels % unit != 0) --unit;
  return unit;
}

class Packer {
 public:
  Packer(const ModelConfig& config, const CpuWeights& weights, int32_t rank)
      : config_(config),
        weights_(weights),
        rank_panels_(rank / kPanelColumns) {}

  // `layer` of the model is `out` of the adapter.
  void Add(const LoraLayer& in, int32_t layer, CpuLoraLayer* out) {
    for (int i = 0; i < kNumLoraInputs; ++i) AddA(in, LoraInput{i}, out);
    for (int i = 0; i < kNumLoraTargets; ++i) {
      const std::optional<LoraPair>& pair = in.pairs[i];
      if (!pair.has_value()) continue;
      out->scale[i] = static_cast<float>(pair->scale);
      AddB(pair->b, LoraTarget{i}, weights_.layers[layer], &out->b[i]);
    }
  }

  absl::Status Pack(ThreadTeam& team, CpuLora* out) const {
    int64_t bytes = 0;
    for (const Place& place : places_) {
      bytes += ArenaCarver::Rounded(place.shape.size().data);
    }
    BATON_ASSIGN_OR_RETURN(out->arena,
                           MemoryArena::Allocate(bytes, "an adapter"));
    out->bytes = bytes;
    ArenaCarver carver(out->arena.memory());
    for (const Place& place : places_) {
      *place.matrix = PackedMatrix::Pack(place.shape, place.sources,
                                         carver.Take(place.shape.size().data),
                                         /*scales=*/{}, team);
    }
    return absl::OkStatus();
  }

 private:
  void AddA(const LoraLayer& in, LoraInput input, CpuLoraLayer* out) {
    const absl::Span<const LoraTarget> targets = TargetsOf(input);
    const WeightMatrix* any = nullptr;
    for (const LoraTarget target : targets) {
      if (in.of(target).has_value()) any = &in.of(target)->a;
    }
    if (any == nullptr) return;
    std::vector<PanelSource> sources;
    for (size_t i = 0; i < targets.size(); ++i) {
      const std::optional<LoraPair>& pair = in.of(targets[i]);
      if (pair.has_value()) {
        AppendPanels(pair->a, 0, pair->a.rows, /*unit=*/1, &sources);
      }
      sources.resize((i + 1) * rank_panels_, {any, 0, 0});
    }
    Add(any->columns, UnitOf(rank_panels_), std::move(sources),
        &out->a[static_cast<size_t>(input)]);
  }

  void AddB(const WeightMatrix& b, LoraTarget target,
            const CpuLayerWeights& layer, PackedMatrix* out) {
    std::vector<PanelSource> sources;
    int32_t unit = 1;
    switch (target) {
      case LoraTarget::kQ:
      case LoraTarget::kK:
      case LoraTarget::kV:
        unit = layer.qkv.unit();
        for (int64_t row = 0; row < b.rows; row += config_.head_dim) {
          AppendPanels(b, row, config_.head_dim, /*unit=*/1, &sources);
        }
        break;
      case LoraTarget::kO:
        unit = layer.o.unit();
        AppendPanels(b, 0, b.rows, unit, &sources);
        break;
      case LoraTarget::kGate:
      case LoraTarget::kUp:
        unit = kGatePanels;
        AppendPanels(b, 0, b.rows, unit, &sources);
        break;
      case LoraTarget::kDown:
        unit = layer.down.unit();
        AppendPanels(b, 0, b.rows, unit, &sources);
        break;
    }
    Add(b.columns, unit, std::move(sources), out);
  }

  void Add(int64_t inputs, int32_t unit, std::vector<PanelSource> sources,
           PackedMatrix* out) {
    const PackedShape shape = {WeightDtype::kBf16, unit,
                               static_cast<int32_t>(inputs),
                               static_cast<int32_t>(sources.size())};
    places_.push_back({shape, std::move(sources), out});
  }

  const ModelConfig& config_;
  const CpuWeights& weights_;
  const size_t rank_panels_;
  std::vector<Place> places_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<const CpuLora>> PackLora(
    const LoraAdapter& adapter, const ModelConfig& config,
    const CpuWeights& weights, ThreadTeam& team) {
  auto out = std::make_unique<CpuLora>();
  out->rank =
      (adapter.rank + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  Packer packer(config, weights, out->rank);
  // Nothing of it moves from here on.
  out->layers.resize(config.num_layers);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    packer.Add(adapter.layers[layer], layer, &out->layers[layer]);
  }
  BATON_RETURN_IF_ERROR(packer.Pack(team, out.get()));
  return out;
}

}  // namespace baton::engine::cpu
