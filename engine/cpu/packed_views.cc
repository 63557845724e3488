#include "engine/cpu/packed_views.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace baton::engine::cpu {
namespace {

// What the views are of.
struct Storage {
  CpuWeights weights;
  std::deque<std::vector<float>> vectors;
};

TensorView FloatView(const std::vector<float>& values) {
  TensorView view;
  view.dtype = DType::kF32;
  view.shape = {static_cast<int64_t>(values.size())};
  view.bytes =
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float));
  return view;
}

TensorView ByteView(absl::Span<const std::byte> bytes) {
  TensorView view;
  view.dtype = DType::kU8;
  view.shape = {static_cast<int64_t>(bytes.size())};
  view.bytes = bytes;
  return view;
}

class Viewer final {
 public:
  explicit Viewer(Storage* storage) : storage_(*storage) {}

  WeightMatrix Matrix(const char* name, const PackedMatrix& matrix,
                      int64_t rows, const OutputRun& run) const {
    WeightMatrix view;
    view.name = name;
    view.rows = rows;
    view.columns = matrix.inputs();
    view.encoding = WeightEncoding::kPacked;
    view.values = ByteView(matrix.data());
    view.scales = ByteView(matrix.scales());
    view.packed = matrix.layout();
    view.run = run;
    view.mapped = storage_.weights.mapping != nullptr;
    return view;
  }
  WeightMatrix Matrix(const char* name, const PackedMatrix& matrix,
                      int64_t rows) const {
    return Matrix(name, matrix, rows, {0, rows, rows});
  }

  // The same of a bias, which lies as the outputs do.
  std::optional<TensorView> Bias(const std::vector<float>& bias, int64_t rows,
                                 const OutputRun& run) {
    if (bias.empty()) return std::nullopt;
    std::vector<float>& values = storage_.vectors.emplace_back();
    for (int64_t row = 0; row < rows; ++row) {
      values.push_back(bias[run.At(row)]);
    }
    return FloatView(values);
  }
  std::optional<TensorView> Bias(const std::vector<float>& bias, int64_t rows) {
    return Bias(bias, rows, {0, rows, rows});
  }

  // The same of two matrices in one, a value of each at a time.
  std::optional<TensorView> BiasInTurns(const std::vector<float>& bias,
                                        int64_t rows, const OutputRun& a,
                                        const OutputRun& b) {
    if (bias.empty()) return std::nullopt;
    std::vector<float>& values = storage_.vectors.emplace_back();
    for (int64_t row = 0; row < rows; ++row) {
      values.push_back(bias[a.At(row)]);
      values.push_back(bias[b.At(row)]);
    }
    return FloatView(values);
  }

 private:
  Storage& storage_;
};

std::optional<TensorView> Optional(const std::vector<float>& values) {
  if (values.empty()) return std::nullopt;
  return FloatView(values);
}

LatentWeights ViewLatent(const ModelConfig& config, const CpuLatentWeights& in,
                         Viewer& viewer) {
  const LatentConfig& latent = config.latent;
  // Heads, of `rows` each, are padded to whole panels.
  const auto heads = [&](const char* name, const PackedMatrix& matrix,
                         int64_t rows) {
    const int64_t padded =
        (rows + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
    return viewer.Matrix(name, matrix, config.num_heads * rows,
                         {0, rows, padded});
  };
  LatentWeights out;
  if (latent.query_rank > 0) {
    out.query_down = viewer.Matrix("q_a_proj", in.down, latent.query_rank);
    out.query_norm = FloatView(in.query_norm);
  }
  const int64_t kept = latent.rank + latent.rope_dim;
  out.down =
      viewer.Matrix("kv_a_proj", in.down, kept, {in.key_column, kept, kept});
  out.norm = FloatView(in.norm);
  out.queries = heads("queries", in.queries, latent.query_dim());
  out.key_up = heads("key_up", in.key_up, latent.rank);
  out.value_up = heads("value_up", in.value_up, latent.value_dim);
  return out;
}

// Heads are padded to whole panels, and gate and up lie in turns, as
// CpuLayerWeights says.
LayerWeights ViewLayer(const ModelConfig& config, int32_t layer,
                       const CpuLayerWeights& in, Viewer& viewer) {
  const int64_t head = config.head_dim;
  const int64_t padded =
      (head + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
  const int64_t heads = config.num_heads;
  const int64_t kv_heads = config.num_kv_heads;
  const OutputRun q = {0, head, padded};
  const OutputRun k = {heads * padded, head, padded};
  const OutputRun v = {(heads + kv_heads) * padded, head, padded};
  const int64_t intermediate = config.intermediate_size;
  const OutputRun gate = {0, kGroupInputs, 2 * kGroupInputs};
  const OutputRun up = {kGroupInputs, kGroupInputs, 2 * kGroupInputs};
  LayerWeights out;
  out.input_norm = FloatView(in.input_norm);
  out.o_proj = viewer.Matrix("o_proj", in.o, config.hidden_size);
  if (config.IsLatent()) {
    out.latent = ViewLatent(config, in.latent, viewer);
  } else {
    out.q_proj = viewer.Matrix("q_proj", in.qkv, heads * head, q);
    out.k_proj = viewer.Matrix("k_proj", in.qkv, kv_heads * head, k);
    out.v_proj = viewer.Matrix("v_proj", in.qkv, kv_heads * head, v);
  }
  out.q_bias = viewer.Bias(in.qkv_bias, heads * head, q);
  out.k_bias = viewer.Bias(in.qkv_bias, kv_heads * head, k);
  out.v_bias = viewer.Bias(in.qkv_bias, kv_heads * head, v);
  out.q_norm = Optional(in.q_norm);
  out.k_norm = Optional(in.k_norm);
  out.sinks = Optional(in.sinks);
  out.o_bias = viewer.Bias(in.o_bias, config.hidden_size);
  out.post_attention_norm = FloatView(in.post_attention_norm);
  if (config.LayerHasExperts(layer)) {
    out.expert_router =
        viewer.Matrix("expert_router", in.expert_router, config.experts.count);
    out.router_bias = Optional(in.router_bias);
    out.choice_bias = Optional(in.choice_bias);
    const int64_t inner = config.experts.intermediate_size;
    for (const CpuExpertWeights& expert : in.experts) {
      out.experts.push_back(
          {viewer.Matrix("gate_proj", expert.gate_up, inner, gate),
           viewer.Matrix("up_proj", expert.gate_up, inner, up),
           viewer.Matrix("down_proj", expert.down, config.hidden_size),
           viewer.BiasInTurns(expert.gate_up_bias, inner, gate, up),
           viewer.Bias(expert.down_bias, config.hidden_size)});
    }
    return out;
  }
  out.gate_proj = viewer.Matrix("gate_proj", in.gate_up, intermediate, gate);
  out.up_proj = viewer.Matrix("up_proj", in.gate_up, intermediate, up);
  out.gate_bias = viewer.Bias(in.gate_up_bias, intermediate, gate);
  out.up_bias = viewer.Bias(in.gate_up_bias, intermediate, up);
  out.down_proj = viewer.Matrix("down_proj", in.down, config.hidden_size);
  out.down_bias = viewer.Bias(in.down_bias, config.hidden_size);
  return out;
}

}  // namespace

ModelWeights ViewPackedWeights(const ModelConfig& config, CpuWeights weights) {
  const auto storage = std::make_shared<Storage>();
  storage->weights = std::move(weights);
  const CpuWeights& in = storage->weights;
  Viewer viewer(storage.get());
  ModelWeights out;
  for (int32_t i = 0; i < config.num_layers; ++i) {
    out.layers.push_back(ViewLayer(config, i, in.layers[i], viewer));
  }
  out.final_norm = FloatView(in.final_norm);
  WeightMatrix head = viewer.Matrix("lm_head", in.lm_head, config.vocab_size);
  if (in.embedding.empty()) {
    out.embedding = std::move(head);
  } else {
    out.embedding.name = "embedding";
    out.embedding.rows = config.vocab_size;
    out.embedding.columns = config.hidden_size;
    out.embedding.values.dtype = DType::kBf16;
    out.embedding.values.shape = {config.vocab_size, config.hidden_size};
    out.embedding.values.bytes = absl::MakeConstSpan(
        reinterpret_cast<const std::byte*>(in.embedding.data()),
        in.embedding.size() * sizeof(uint16_t));
    out.embedding.mapped = in.mapping != nullptr;
    out.lm_head = std::move(head);
  }
  out.storage = storage;
  return out;
}

}  // namespace baton::engine::cpu
