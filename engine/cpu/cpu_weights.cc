#include "engine/cpu/cpu_weights.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/status_macros.h"
#include "engine/float_convert.h"
#include "engine/mxfp4_rows.h"
#include "engine/norm_weights.h"

namespace baton::engine::cpu {
namespace {

std::vector<float> Floats(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  ConvertToFloat(view.dtype, view.bytes, absl::MakeSpan(values));
  return values;
}

std::vector<float> OptionalFloats(const std::optional<TensorView>& view) {
  return view ? Floats(*view) : std::vector<float>();
}

// Values in runs of `run`, each padded with zeros to `padded`.
void AppendPadded(absl::Span<const float> values, size_t run, size_t padded,
                  std::vector<float>* out) {
  for (size_t i = 0; i < values.size(); i += run) {
    const absl::Span<const float> part = values.subspan(i, run);
    out->insert(out->end(), part.begin(), part.end());
    out->resize(out->size() + padded - part.size());
  }
}

std::vector<float> QkvBias(const ModelConfig& config, const LayerWeights& in) {
  std::vector<float> bias;
  if (!in.q_bias) return bias;
  const size_t head = config.head_dim;
  const size_t padded =
      (head + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  for (const auto* part : {&in.q_bias, &in.k_bias, &in.v_bias}) {
    AppendPadded(Floats(**part), head, padded, &bias);
  }
  return bias;
}

// As the outputs of GateUpPanels lie.
std::vector<float> GateUpBias(absl::Span<const float> gate,
                              absl::Span<const float> up) {
  std::vector<float> bias;
  for (size_t i = 0; i < gate.size(); i += kGroupInputs) {
    for (const absl::Span<const float> part : {gate, up}) {
      AppendPadded(part.subspan(i, kGroupInputs), kGroupInputs, kGroupInputs,
                   &bias);
    }
  }
  return bias;
}

std::vector<float> GateUpBias(const LayerWeights& in) {
  if (!in.gate_bias) return {};
  return GateUpBias(Floats(*in.gate_bias), Floats(*in.up_bias));
}

std::vector<float> GateUpBias(const ExpertWeights& in) {
  if (!in.gate_up_bias) return {};
  std::vector<float> parts[2];
  for (const float value : Floats(*in.gate_up_bias)) {
    parts[parts[0].size() > parts[1].size()].push_back(value);
  }
  return GateUpBias(parts[0], parts[1]);
}

std::vector<float> OutputBias(const std::optional<TensorView>& view) {
  std::vector<float> bias;
  if (!view) return bias;
  const std::vector<float> values = Floats(*view);
  const size_t padded =
      (values.size() + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  AppendPadded(values, values.size(), padded, &bias);
  return bias;
}

std::vector<PanelSource> QkvPanels(const ModelConfig& config,
                                   const LayerWeights& in) {
  std::vector<PanelSource> panels;
  const auto add = [&](const WeightMatrix& part, int32_t heads) {
    for (int32_t h = 0; h < heads; ++h) {
      AppendPanels(part, int64_t{h} * config.head_dim, config.head_dim,
                   /*unit=*/1, &panels);
    }
  };
  add(in.q_proj, config.num_heads);
  add(in.k_proj, config.num_kv_heads);
  add(in.v_proj, config.num_kv_heads);
  return panels;
}

int32_t PanelsOf(int64_t outputs, int32_t unit) {
  const int64_t columns = int64_t{unit} * kPanelColumns;
  return static_cast<int32_t>((outputs + columns - 1) / columns) * unit;
}

std::vector<PanelSource> HeadPanels(const WeightMatrix& matrix, int32_t heads) {
  std::vector<PanelSource> panels;
  const int64_t rows = matrix.rows / heads;
  for (int32_t h = 0; h < heads; ++h) {
    AppendPanels(matrix, h * rows, rows, /*unit=*/1, &panels);
  }
  return panels;
}

// As CpuLatentWeights::down says.
std::vector<PanelSource> LatentPanels(const LatentWeights& in,
                                      const PackedShape& shape) {
  std::vector<PanelSource> panels;
  if (in.query_down.has_value()) {
    AppendPanels(*in.query_down, 0, in.query_down->rows, /*unit=*/1, &panels);
  }
  AppendPanels(in.down, 0, in.down.rows, /*unit=*/1, &panels);
  panels.resize(shape.panels, {&in.down, 0, 0});
  return panels;
}

std::vector<PanelSource> GateUpPanels(const WeightMatrix& gate,
                                      const WeightMatrix& up) {
  std::vector<PanelSource> panels;
  for (int64_t row = 0; row < gate.rows; row += kGroupInputs) {
    const int64_t count = std::min<int64_t>(kGroupInputs, gate.rows - row);
    AppendPanels(gate, row, count, kGatePanels, &panels);
    AppendPanels(up, row, count, kGatePanels, &panels);
  }
  return panels;
}

// The widest unit that a head's panels are a multiple of.
int32_t HeadUnit(int32_t head_panels) {
  int32_t unit = kWideUnit;
  while (head_panels % unit != 0) --unit;
  return unit;
}

// Few outputs are cut into narrower strips, so that a team of threads can share
// them more evenly.
PackedShape OutputShape(WeightDtype dtype, int32_t inputs, int64_t outputs) {
  constexpr int64_t kManyOutputs = 1024;
  const int32_t unit = outputs >= kManyOutputs ? kWideUnit : kWideUnit / 2;
  return {dtype, unit, inputs, PanelsOf(outputs, unit)};
}

std::vector<PanelSource> OutputPanels(const WeightMatrix& matrix,
                                      int32_t unit) {
  std::vector<PanelSource> panels;
  AppendPanels(matrix, 0, matrix.rows, unit, &panels);
  return panels;
}

// Makes room for a layer's latent attention, and says where its parts are.
void AppendLatentPlaces(const ModelConfig& config, WeightDtype dtype,
                        const std::string& prefix, CpuLatentWeights& weights,
                        std::vector<MatrixPlace>* places) {
  const LatentConfig& latent = config.latent;
  const int32_t hidden = config.hidden_size;
  const int32_t query_panels = PanelsOf(latent.query_rank, 1);
  weights.key_column = query_panels * kPanelColumns;
  places->push_back(
      {prefix + "latent_down",
       OutputShape(dtype, hidden,
                   weights.key_column + latent.rank + latent.rope_dim),
       &weights.down});
  const auto add = [&](const char* name, int32_t inputs, int32_t head_outputs,
                       PackedMatrix* matrix) {
    const int32_t panels = PanelsOf(head_outputs, 1);
    places->push_back(
        {prefix + name,
         {dtype, HeadUnit(panels), inputs, config.num_heads * panels},
         matrix});
  };
  add("queries", latent.query_rank > 0 ? latent.query_rank : hidden,
      latent.query_dim(), &weights.queries);
  add("key_up", latent.nope_dim, latent.rank, &weights.key_up);
  add("value_up", latent.rank, latent.value_dim, &weights.value_up);
}

void CopyEmbedding(const WeightMatrix& embedding, ThreadTeam& team,
                   uint16_t* copy) {
  constexpr int64_t kRows = 256;
  team.ParallelFor(
      (embedding.rows + kRows - 1) / kRows, [&](int64_t item, int32_t) {
        const int64_t first = item * kRows;
        const int64_t count = std::min(kRows, embedding.rows - first);
        std::vector<float> rows(count * embedding.columns);
        ReadRows(embedding, first, count, absl::MakeSpan(rows));
        ReleaseRows(embedding, first, count);
        uint16_t* const out = copy + first * embedding.columns;
        for (size_t i = 0; i < rows.size(); ++i) out[i] = FloatToBf16(rows[i]);
      });
}

// What becomes one packed matrix.
struct MatrixSource {
  std::vector<PanelSource> panels;
  std::vector<const WeightMatrix*> parts;
};

// In the order of MatrixPlaces.
std::vector<MatrixSource> MatrixSources(const ModelConfig& config,
                                        const ModelWeights& weights,
                                        absl::Span<const MatrixPlace> places) {
  std::vector<MatrixSource> sources;
  const auto add_output = [&](const WeightMatrix& matrix) {
    const int32_t unit = places[sources.size()].shape.unit;
    sources.push_back({OutputPanels(matrix, unit), {&matrix}});
  };
  const auto add_gate_up = [&](const WeightMatrix& gate,
                               const WeightMatrix& up) {
    sources.push_back({GateUpPanels(gate, up), {&gate, &up}});
  };
  const auto add_latent = [&](const LatentWeights& in) {
    std::vector<const WeightMatrix*> parts = {&in.down};
    if (in.query_down.has_value()) parts.push_back(&*in.query_down);
    sources.push_back(
        {LatentPanels(in, places[sources.size()].shape), std::move(parts)});
    for (const WeightMatrix* const matrix :
         {&in.queries, &in.key_up, &in.value_up}) {
      sources.push_back({HeadPanels(*matrix, config.num_heads), {matrix}});
    }
  };
  for (const LayerWeights& in : weights.layers) {
    if (in.latent.has_value()) {
      add_latent(*in.latent);
    } else {
      sources.push_back(
          {QkvPanels(config, in), {&in.q_proj, &in.k_proj, &in.v_proj}});
    }
    add_output(in.o_proj);
    if (!in.expert_router.has_value()) {
      add_gate_up(in.gate_proj, in.up_proj);
      add_output(in.down_proj);
      continue;
    }
    add_output(*in.expert_router);
    for (const ExpertWeights& expert : in.experts) {
      add_gate_up(expert.gate_proj, expert.up_proj);
      add_output(expert.down_proj);
    }
  }
  add_output(weights.lm_head ? *weights.lm_head : weights.embedding);
  return sources;
}

}  // namespace

std::vector<MatrixPlace> MatrixPlaces(const ModelConfig& config,
                                      CpuWeights& weights) {
  const WeightDtype dtype =
      weights.dtype == WeightDtype::kMxfp4 ? WeightDtype::kBf16 : weights.dtype;
  const int32_t head_panels =
      (config.head_dim + kPanelColumns - 1) / kPanelColumns;
  const int32_t heads = config.num_heads + 2 * config.num_kv_heads;
  const PackedShape qkv = {dtype, HeadUnit(head_panels), config.hidden_size,
                           heads * head_panels};
  const PackedShape o = OutputShape(
      dtype, static_cast<int32_t>(config.AttentionSize()), config.hidden_size);
  const auto gate_up = [&](WeightDtype of, int32_t inner) -> PackedShape {
    return {of, kGatePanels, config.hidden_size,
            2 * PanelsOf(inner, kGatePanels)};
  };
  const auto down = [&](WeightDtype of, int32_t inner) {
    return OutputShape(of, inner, config.hidden_size);
  };
  const ExpertsConfig& experts = config.experts;
  weights.layers.resize(config.num_layers);
  std::vector<MatrixPlace> places;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    CpuLayerWeights& layer = weights.layers[i];
    const std::string prefix = absl::StrCat("layers.", i, ".");
    if (config.IsLatent()) {
      AppendLatentPlaces(config, dtype, prefix, layer.latent, &places);
    } else {
      places.push_back({prefix + "qkv", qkv, &layer.qkv});
    }
    places.push_back({prefix + "o", o, &layer.o});
    if (!config.LayerHasExperts(i)) {
      const int32_t inner = config.intermediate_size;
      places.push_back(
          {prefix + "gate_up", gate_up(dtype, inner), &layer.gate_up});
      places.push_back({prefix + "down", down(dtype, inner), &layer.down});
      continue;
    }
    places.push_back(
        {prefix + "expert_router",
         OutputShape(WeightDtype::kBf16, config.hidden_size, experts.count),
         &layer.expert_router});
    layer.experts.resize(experts.all());
    for (int32_t e = 0; e < experts.all(); ++e) {
      CpuExpertWeights& expert = layer.experts[e];
      const std::string name = absl::StrCat(prefix, "experts.", e, ".");
      const int32_t inner = experts.intermediate_size;
      places.push_back(
          {name + "gate_up", gate_up(weights.dtype, inner), &expert.gate_up});
      places.push_back(
          {name + "down", down(weights.dtype, inner), &expert.down});
    }
  }
  places.push_back({"lm_head",
                    OutputShape(dtype, config.hidden_size, config.vocab_size),
                    &weights.lm_head});
  return places;
}

absl::Status CheckMxfp4(const ModelWeights& weights) {
  bool experts = false;
  for (const LayerWeights& layer : weights.layers) {
    for (const ExpertWeights& expert : layer.experts) {
      experts = true;
      for (const WeightMatrix* const matrix :
           {&expert.gate_proj, &expert.up_proj, &expert.down_proj}) {
        if (HasMxfp4(*matrix)) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "weights: mxfp4 is for experts that files have in MXFP4; ",
            matrix->name, " is ", WeightEncodingName(matrix->encoding)));
      }
    }
  }
  if (experts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "weights: mxfp4 is for experts that files have in MXFP4; the model has "
      "no experts");
}

absl::StatusOr<CpuWeights> PackWeights(const ModelConfig& config,
                                       const ModelWeights& weights,
                                       WeightDtype dtype, ThreadTeam& team,
                                       LoadProgress progress) {
  CpuWeights out;
  out.dtype = dtype;
  out.hidden_size = config.hidden_size;
  out.final_norm = NormWeights(config, weights.final_norm);
  const std::vector<MatrixPlace> places = MatrixPlaces(config, out);
  const std::vector<MatrixSource> sources =
      MatrixSources(config, weights, places);
  const int64_t embedding_values =
      weights.lm_head ? weights.embedding.rows * weights.embedding.columns : 0;
  int64_t bytes = ArenaCarver::Rounded(embedding_values * sizeof(uint16_t));
  for (const MatrixPlace& place : places) {
    const PackedSize size = place.shape.size();
    bytes +=
        ArenaCarver::Rounded(size.data) + ArenaCarver::Rounded(size.scales);
  }
  BATON_ASSIGN_OR_RETURN(out.arena, MemoryArena::Allocate(bytes, "weights"));
  ArenaCarver carver(out.arena.memory());
  int64_t done = 0;
  for (size_t i = 0; i < places.size(); ++i) {
    const PackedSize size = places[i].shape.size();
    const absl::Span<std::byte> data = carver.Take(size.data);
    const absl::Span<std::byte> scales = carver.Take(size.scales);
    *places[i].matrix = PackedMatrix::Pack(places[i].shape, sources[i].panels,
                                           data, scales, team);
    for (const WeightMatrix* part : sources[i].parts) ReleasePages(*part);
    done += size.data + size.scales;
    progress(static_cast<double>(done) / static_cast<double>(bytes));
  }
  if (weights.lm_head) {
    const absl::Span<std::byte> copy =
        carver.Take(embedding_values * sizeof(uint16_t));
    auto* const values = reinterpret_cast<uint16_t*>(copy.data());
    CopyEmbedding(weights.embedding, team, values);
    ReleasePages(weights.embedding);
    out.embedding = {values, static_cast<size_t>(embedding_values)};
  }
  for (int32_t i = 0; i < config.num_layers; ++i) {
    const LayerWeights& in = weights.layers[i];
    CpuLayerWeights& layer = out.layers[i];
    layer.input_norm = NormWeights(config, in.input_norm);
    layer.qkv_bias = QkvBias(config, in);
    layer.q_norm = NormWeights(config, in.q_norm);
    layer.k_norm = NormWeights(config, in.k_norm);
    layer.o_bias = OutputBias(in.o_bias);
    layer.attention_out_norm = NormWeights(config, in.attention_out_norm);
    layer.feed_forward_out_norm = NormWeights(config, in.feed_forward_out_norm);
    layer.post_attention_norm = NormWeights(config, in.post_attention_norm);
    layer.gate_up_bias = GateUpBias(in);
    layer.down_bias = OutputBias(in.down_bias);
    if (in.latent.has_value()) {
      layer.latent.query_norm = OptionalFloats(in.latent->query_norm);
      layer.latent.norm = Floats(in.latent->norm);
    }
    layer.sinks = OptionalFloats(in.sinks);
    layer.router_bias = OptionalFloats(in.router_bias);
    layer.choice_bias = OptionalFloats(in.choice_bias);
    for (size_t e = 0; e < in.experts.size(); ++e) {
      layer.experts[e].gate_up_bias = GateUpBias(in.experts[e]);
      layer.experts[e].down_bias = OutputBias(in.experts[e].down_bias);
    }
  }
  return out;
}

void CpuWeights::ReadEmbedding(TokenId token, float* x) const {
  if (embedding.empty()) {
    lm_head.ReadOutput(token, x);
    return;
  }
  const uint16_t* const row = embedding.data() + int64_t{token} * hidden_size;
  for (int32_t i = 0; i < hidden_size; ++i) x[i] = Bf16ToFloat(row[i]);
}

int64_t CpuWeights::matrix_bytes() const {
  int64_t bytes = lm_head.bytes();
  for (const CpuLayerWeights& layer : layers) {
    const CpuLatentWeights& latent = layer.latent;
    bytes += latent.down.bytes() + latent.queries.bytes() +
             latent.key_up.bytes() + latent.value_up.bytes();
    bytes += layer.qkv.bytes() + layer.o.bytes() + layer.gate_up.bytes() +
             layer.down.bytes() + layer.expert_router.bytes();
    for (const CpuExpertWeights& expert : layer.experts) {
      bytes += expert.gate_up.bytes() + expert.down.bytes();
    }
  }
  return bytes;
}

}  // namespace baton::engine::cpu
