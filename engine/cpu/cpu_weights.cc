#include "engine/cpu/cpu_weights.h"

#include <initializer_list>
#include <optional>

#include "absl/types/span.h"
#include "engine/float_convert.h"

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

// The biases of the parts of a packed matrix, each padded as its part is;
// empty when none of them is there.
std::vector<float> PackBias(
    std::initializer_list<const std::optional<TensorView>*> parts) {
  std::vector<float> bias;
  for (const std::optional<TensorView>* part : parts) {
    if (!*part) return {};
    const std::vector<float> values = Floats(**part);
    bias.insert(bias.end(), values.begin(), values.end());
    bias.resize((bias.size() + kPanelColumns - 1) / kPanelColumns *
                kPanelColumns);
  }
  return bias;
}

CpuLayerWeights PackLayer(const LayerWeights& in, ThreadTeam& team) {
  CpuLayerWeights out;
  out.input_norm = Floats(in.input_norm);
  out.qkv = PackedMatrix::Pack({&in.q_proj, &in.k_proj, &in.v_proj}, team);
  out.qkv_bias = PackBias({&in.q_bias, &in.k_bias, &in.v_bias});
  out.q_norm = OptionalFloats(in.q_norm);
  out.k_norm = OptionalFloats(in.k_norm);
  out.o = PackedMatrix::Pack({&in.o_proj}, team);
  out.o_bias = PackBias({&in.o_bias});
  out.post_attention_norm = Floats(in.post_attention_norm);
  out.gate_up = PackedMatrix::Pack({&in.gate_proj, &in.up_proj}, team);
  out.gate_up_bias = PackBias({&in.gate_bias, &in.up_bias});
  out.down = PackedMatrix::Pack({&in.down_proj}, team);
  out.down_bias = PackBias({&in.down_bias});
  return out;
}

}  // namespace

CpuWeights::CpuWeights(const ModelConfig& config, const ModelWeights& weights,
                       ThreadTeam& team)
    : hidden_size_(config.hidden_size),
      final_norm_(Floats(weights.final_norm)) {
  layers_.reserve(weights.layers.size());
  for (const LayerWeights& layer : weights.layers) {
    layers_.push_back(PackLayer(layer, team));
  }
  const WeightMatrix& embedding = weights.embedding;
  if (weights.lm_head) {
    lm_head_ = PackedMatrix::Pack({&*weights.lm_head}, team);
    embedding_.Reserve(embedding.rows * embedding.columns);
    std::vector<float> row(embedding.columns);
    for (int64_t r = 0; r < embedding.rows; ++r) {
      ReadRow(embedding, r, absl::MakeSpan(row));
      uint16_t* const out = embedding_.data() + r * embedding.columns;
      for (int64_t i = 0; i < embedding.columns; ++i) {
        out[i] = FloatToBf16(row[i]);
      }
    }
  } else {
    lm_head_ = PackedMatrix::Pack({&embedding}, team);
  }
}

void CpuWeights::ReadEmbedding(TokenId token, float* x) const {
  if (embedding_.size() == 0) {
    lm_head_.ReadOutput(token, x);
    return;
  }
  const uint16_t* const row = embedding_.data() + int64_t{token} * hidden_size_;
  for (int32_t i = 0; i < hidden_size_; ++i) x[i] = Bf16ToFloat(row[i]);
}

}  // namespace baton::engine::cpu
