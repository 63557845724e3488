#include "engine/cuda/device_weights.h"

#include <algorithm>
#include <optional>

#include "common/status_macros.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/output_rows.h"
#include "engine/cuda/weight_loader.h"
#include "engine/float_convert.h"
#include "engine/norm_weights.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {
namespace {

std::vector<float> FloatsOf(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  ConvertToFloat(view.dtype, view.bytes, absl::MakeSpan(values));
  return values;
}
std::vector<float> FloatsOf(const std::optional<TensorView>& view) {
  return view ? FloatsOf(*view) : std::vector<float>();
}

// The share of a rank.
struct Part {
  int64_t first = 0;
  int64_t count = 0;
};
Part PartOf(const Shard& shard, int64_t count) {
  return {shard.rank * count / shard.ranks, count / shard.ranks};
}
OutputRows RowsOf(const WeightMatrix& matrix, const Shard& shard) {
  const Part part = PartOf(shard, matrix.rows);
  return {&matrix, part.first, part.count};
}
// Of a norm or a bias; nothing of one that is not there.
std::vector<float> FloatsOf(const std::optional<TensorView>& view,
                            const Shard& shard) {
  const std::vector<float> all = FloatsOf(view);
  const Part part = PartOf(shard, static_cast<int64_t>(all.size()));
  return {all.begin() + part.first, all.begin() + part.first + part.count};
}

// Outputs up to a whole tile that are not there.
void PadTile(int64_t count, std::vector<OutputRows>& rows) {
  const int64_t padding = (kTileOutputs - count % kTileOutputs) % kTileOutputs;
  if (padding > 0) rows.push_back({nullptr, 0, padding});
}

// Adds tiles of gate and of up in turns, the last ones padded.
void AddGateUpRows(const WeightMatrix& gate, const WeightMatrix& up,
                   const Shard& shard, std::vector<OutputRows>& rows) {
  const Part part = PartOf(shard, gate.rows);
  for (int64_t at = 0; at < part.count; at += kTileOutputs) {
    const int64_t count = std::min<int64_t>(kTileOutputs, part.count - at);
    for (const WeightMatrix* matrix : {&gate, &up}) {
      rows.push_back({matrix, part.first + at, count});
      PadTile(count, rows);
    }
  }
}

// The same for their biases.
std::vector<float> GateUpBias(const std::vector<float>& gate,
                              const std::vector<float>& up) {
  std::vector<float> bias;
  for (size_t first = 0; first < gate.size(); first += kTileOutputs) {
    for (const std::vector<float>* part : {&gate, &up}) {
      for (size_t i = first; i < first + kTileOutputs; ++i) {
        bias.push_back(i < part->size() ? (*part)[i] : 0.0f);
      }
    }
  }
  return bias;
}

// Adds those of an expert, padded as AddGateUpRows and PadTile do it.
void AddExpertBias(const ExpertWeights& expert, const Shard& shard,
                   std::vector<float>& gate_up, std::vector<float>& down) {
  if (!expert.gate_up_bias.has_value()) return;
  const std::vector<float> all = FloatsOf(expert.gate_up_bias);
  const Part part = PartOf(shard, static_cast<int64_t>(all.size()) / 2);
  std::vector<float> of_gate;
  std::vector<float> of_up;
  for (int64_t i = part.first; i < part.first + part.count; ++i) {
    of_gate.push_back(all[2 * i]);
    of_up.push_back(all[2 * i + 1]);
  }
  const std::vector<float> in_tiles = GateUpBias(of_gate, of_up);
  gate_up.insert(gate_up.end(), in_tiles.begin(), in_tiles.end());
  const std::vector<float> of_down = FloatsOf(expert.down_bias, shard);
  down.insert(down.end(), of_down.begin(), of_down.end());
  down.resize((down.size() + kTileOutputs - 1) / kTileOutputs * kTileOutputs);
}

// Tokens of the vocabulary; what a rank has beyond them is zero.
std::vector<OutputRows> HeadRows(const ModelConfig& config,
                                 const WeightMatrix& head, const Shard& shard) {
  const int64_t share = shard.Vocabulary(config);
  const int64_t first = std::min(shard.rank * share, head.rows);
  const int64_t count = std::min(share, head.rows - first);
  std::vector<OutputRows> rows;
  if (count > 0) rows.push_back({&head, first, count});
  if (count < share) rows.push_back({nullptr, 0, share - count});
  return rows;
}

// Each expert's outputs begin with a tile of their own.
absl::Status LoadExperts(const ModelConfig& config, const LayerWeights& in,
                         const Shard& shard, WeightLoader& loader,
                         DeviceLayer& layer) {
  const WeightMatrix& router = *in.expert_router;
  BATON_ASSIGN_OR_RETURN(
      layer.expert_router,
      loader.Matrix({{&router, 0, router.rows}}, config.hidden_size,
                    FloatsOf(in.router_bias), WeightFormat::kBf16));
  BATON_ASSIGN_OR_RETURN(layer.choice_bias,
                         loader.Vector(FloatsOf(in.choice_bias)));
  std::vector<OutputRows> gate_up;
  std::vector<OutputRows> down;
  std::vector<float> gate_up_bias;
  std::vector<float> down_bias;
  for (const ExpertWeights& expert : in.experts) {
    AddExpertBias(expert, shard, gate_up_bias, down_bias);
    AddGateUpRows(expert.gate_proj, expert.up_proj, shard, gate_up);
    down.push_back(RowsOf(expert.down_proj, shard));
    PadTile(down.back().count, down);
  }
  const auto first_of_all = [&](DeviceMatrix& all, int32_t outputs) {
    all.outputs = outputs;
    all.output_tiles /= config.experts.all();
  };
  BATON_ASSIGN_OR_RETURN(
      layer.gate_up, loader.Matrix(gate_up, config.hidden_size, gate_up_bias));
  first_of_all(layer.gate_up, 2 * shard.ExpertIntermediate(config));
  BATON_ASSIGN_OR_RETURN(
      layer.down,
      loader.Matrix(down, config.experts.intermediate_size, down_bias));
  first_of_all(layer.down, shard.Hidden(config));
  return absl::OkStatus();
}

// Each head's outputs begin with a tile of their own.
absl::StatusOr<DeviceMatrix> LoadHeads(const WeightMatrix& matrix,
                                       int32_t outputs, const Shard& shard,
                                       WeightLoader& loader) {
  const Part part = PartOf(shard, matrix.rows);
  std::vector<OutputRows> rows;
  for (int64_t at = 0; at < part.count; at += outputs) {
    rows.push_back({&matrix, part.first + at, outputs});
    PadTile(outputs, rows);
  }
  BATON_ASSIGN_OR_RETURN(
      DeviceMatrix all,
      loader.Matrix(rows, static_cast<int32_t>(matrix.columns), {}));
  all.outputs = outputs;
  all.output_tiles /= static_cast<int32_t>(part.count / outputs);
  return all;
}

absl::StatusOr<DeviceLatent> LoadLatent(const ModelConfig& config,
                                        const LatentWeights& in,
                                        const Shard& shard,
                                        WeightLoader& loader) {
  DeviceLatent latent;
  std::vector<OutputRows> down;
  if (in.query_down) down.push_back({&*in.query_down, 0, in.query_down->rows});
  down.push_back({&in.down, 0, in.down.rows});
  BATON_ASSIGN_OR_RETURN(latent.down,
                         loader.Matrix(down, config.hidden_size, {}));
  BATON_ASSIGN_OR_RETURN(latent.query_norm,
                         loader.Vector(NormWeights(config, in.query_norm)));
  BATON_ASSIGN_OR_RETURN(latent.norm,
                         loader.Vector(NormWeights(config, in.norm)));
  BATON_ASSIGN_OR_RETURN(
      latent.queries,
      loader.Matrix({RowsOf(in.queries, shard)},
                    static_cast<int32_t>(in.queries.columns), {}));
  BATON_ASSIGN_OR_RETURN(
      latent.key_up, LoadHeads(in.key_up, config.latent.rank, shard, loader));
  BATON_ASSIGN_OR_RETURN(
      latent.value_up,
      LoadHeads(in.value_up, config.latent.value_dim, shard, loader));
  return latent;
}

// In place of it: heads of Q, K and V.
absl::Status LoadQkv(const ModelConfig& config, const LayerWeights& in,
                     const Shard& shard, WeightLoader& loader,
                     DeviceLayer& layer) {
  std::vector<float> qkv_bias;
  for (const auto* part : {&in.q_bias, &in.k_bias, &in.v_bias}) {
    const std::vector<float> values = FloatsOf(*part, shard);
    qkv_bias.insert(qkv_bias.end(), values.begin(), values.end());
  }
  BATON_ASSIGN_OR_RETURN(
      layer.qkv,
      loader.Matrix({RowsOf(in.q_proj, shard), RowsOf(in.k_proj, shard),
                     RowsOf(in.v_proj, shard)},
                    config.hidden_size, qkv_bias));
  BATON_ASSIGN_OR_RETURN(layer.q_norm,
                         loader.Vector(NormWeights(config, in.q_norm)));
  BATON_ASSIGN_OR_RETURN(layer.k_norm,
                         loader.Vector(NormWeights(config, in.k_norm)));
  return absl::OkStatus();
}

absl::StatusOr<DeviceLayer> LoadLayer(const ModelConfig& config,
                                      const LayerWeights& in,
                                      const Shard& shard,
                                      WeightLoader& loader) {
  DeviceLayer layer;
  BATON_ASSIGN_OR_RETURN(layer.input_norm,
                         loader.Vector(NormWeights(config, in.input_norm)));
  if (in.latent) {
    BATON_ASSIGN_OR_RETURN(layer.latent,
                           LoadLatent(config, *in.latent, shard, loader));
  } else {
    BATON_RETURN_IF_ERROR(LoadQkv(config, in, shard, loader, layer));
  }
  std::vector<float> sinks = FloatsOf(in.sinks, shard);
  for (float& sink : sinks) sink *= static_cast<float>(kLog2E);
  BATON_ASSIGN_OR_RETURN(layer.sinks, loader.Vector(sinks));
  BATON_ASSIGN_OR_RETURN(
      layer.o, loader.Matrix({RowsOf(in.o_proj, shard)},
                             static_cast<int32_t>(config.AttentionSize()),
                             FloatsOf(in.o_bias, shard)));
  BATON_ASSIGN_OR_RETURN(
      layer.attention_out_norm,
      loader.Vector(NormWeights(config, in.attention_out_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.feed_forward_out_norm,
      loader.Vector(NormWeights(config, in.feed_forward_out_norm)));
  BATON_ASSIGN_OR_RETURN(
      layer.post_attention_norm,
      loader.Vector(NormWeights(config, in.post_attention_norm)));
  if (in.expert_router) {
    BATON_RETURN_IF_ERROR(LoadExperts(config, in, shard, loader, layer));
    return layer;
  }
  std::vector<OutputRows> gate_up;
  AddGateUpRows(in.gate_proj, in.up_proj, shard, gate_up);
  BATON_ASSIGN_OR_RETURN(
      layer.gate_up, loader.Matrix(gate_up, config.hidden_size,
                                   GateUpBias(FloatsOf(in.gate_bias, shard),
                                              FloatsOf(in.up_bias, shard))));
  // Padding counts as outputs so far; half of the rest is what SwiGLU gives.
  layer.gate_up.outputs = 2 * shard.Intermediate(config);
  BATON_ASSIGN_OR_RETURN(
      layer.down,
      loader.Matrix({RowsOf(in.down_proj, shard)}, config.intermediate_size,
                    FloatsOf(in.down_bias, shard)));
  return layer;
}

int64_t ElementsOf(const ModelWeights& weights) {
  int64_t elements = 0;
  for (const WeightMatrix* matrix : weights.AllMatrices()) {
    elements += matrix->rows * matrix->columns;
  }
  return elements;
}

}  // namespace

std::vector<WeightFormat> DeviceWeights::ProductFormats() const {
  std::vector<WeightFormat> all = formats;
  if (has_experts() &&
      std::count(all.begin(), all.end(), WeightFormat::kBf16) == 0) {
    all.push_back(WeightFormat::kBf16);
  }
  return all;
}

bool DeviceWeights::has_experts() const {
  return std::any_of(layers.begin(), layers.end(), [](const DeviceLayer& l) {
    return l.expert_router.output_tiles > 0;
  });
}

absl::StatusOr<DeviceWeights> LoadDeviceWeights(
    const ModelConfig& config, const ModelWeights& weights,
    std::optional<WeightFormat> format, const Shard& shard,
    cpu::ThreadTeam& team, Stream& stream,
    absl::FunctionRef<void(double)> progress) {
  DeviceWeights result;
  WeightLoader loader(format, team, stream, ElementsOf(weights) / shard.ranks,
                      progress, &result);
  const bool tied = !weights.lm_head.has_value();
  for (const LayerWeights& layer : weights.layers) {
    BATON_ASSIGN_OR_RETURN(DeviceLayer loaded,
                           LoadLayer(config, layer, shard, loader));
    result.layers.push_back(loaded);
    for (const WeightMatrix* matrix : layer.Matrices()) ReleasePages(*matrix);
  }
  BATON_ASSIGN_OR_RETURN(result.final_norm, loader.Vector(NormWeights(
                                                config, weights.final_norm)));
  const WeightMatrix& head = tied ? weights.embedding : *weights.lm_head;
  BATON_ASSIGN_OR_RETURN(
      result.lm_head,
      loader.Matrix(HeadRows(config, head, shard), config.hidden_size, {}));
  if (!tied) {
    BATON_ASSIGN_OR_RETURN(result.embedding, loader.Rows(weights.embedding));
    ReleasePages(weights.embedding);
  } else if (shard.ranks == 1) {
    result.tied_embedding = result.lm_head;
  } else {
    BATON_ASSIGN_OR_RETURN(
        result.tied_embedding,
        loader.Matrix({{&head, 0, head.rows}}, config.hidden_size, {}));
  }
  ReleasePages(head);
  return result;
}

}  // namespace baton::engine::cuda
