#include "engine/weights.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::engine {
namespace {

// Finds tensors by name and checks them. The first error is remembered; what is
// taken after it is empty.
class TensorFinder {
 public:
  explicit TensorFinder(const SafetensorsSet& set) : set_(set) {}

  const absl::Status& status() const { return status_; }

  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    if (!status_.ok()) return {};
    const TensorView* tensor = set_.Find(name);
    if (tensor == nullptr) {
      status_ = absl::NotFoundError(
          absl::StrCat(set_.source(), ": tensor \"", name, "\" is missing"));
      return {};
    }
    if (tensor->shape != shape) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(tensor->file, ": tensor \"", name, "\" has shape ",
                       ShapeString(tensor->shape), ", config.json asks for ",
                       ShapeString(shape)));
      return {};
    }
    if (!IsWeightDType(tensor->dtype)) {
      status_ = absl::UnimplementedError(absl::StrCat(
          tensor->file, ": tensor \"", name, "\" is ", DTypeName(tensor->dtype),
          "; Baton reads weights in F32, F16 and BF16"));
      return {};
    }
    return *tensor;
  }

  WeightMatrix TakeMatrix(const std::string& name, int64_t rows,
                          int64_t columns) {
    WeightMatrix matrix;
    matrix.name = name;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.values = Take(name, {rows, columns});
    matrix.mapped = true;
    return matrix;
  }

  std::optional<TensorView> TakeIf(bool wanted, const std::string& name,
                                   std::vector<int64_t> shape) {
    if (!wanted) return std::nullopt;
    return Take(name, std::move(shape));
  }

 private:
  const SafetensorsSet& set_;
  absl::Status status_;
};

LayerWeights TakeLayer(TensorFinder& finder, const ModelConfig& config,
                       int32_t layer) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t head_dim = config.head_dim;
  const int64_t q_size = config.num_heads * head_dim;
  const int64_t kv_size = config.num_kv_heads * head_dim;

  LayerWeights w;
  w.input_norm = finder.Take(prefix + "input_layernorm.weight", {hidden});
  w.q_proj = finder.TakeMatrix(attention + "q_proj.weight", q_size, hidden);
  w.k_proj = finder.TakeMatrix(attention + "k_proj.weight", kv_size, hidden);
  w.v_proj = finder.TakeMatrix(attention + "v_proj.weight", kv_size, hidden);
  w.o_proj = finder.TakeMatrix(attention + "o_proj.weight", hidden, q_size);
  const bool qkv_bias = config.qkv_bias;
  w.q_bias = finder.TakeIf(qkv_bias, attention + "q_proj.bias", {q_size});
  w.k_bias = finder.TakeIf(qkv_bias, attention + "k_proj.bias", {kv_size});
  w.v_bias = finder.TakeIf(qkv_bias, attention + "v_proj.bias", {kv_size});
  w.o_bias = finder.TakeIf(config.o_bias, attention + "o_proj.bias", {hidden});
  const bool qk_norm = config.qk_norm;
  w.q_norm = finder.TakeIf(qk_norm, attention + "q_norm.weight", {head_dim});
  w.k_norm = finder.TakeIf(qk_norm, attention + "k_norm.weight", {head_dim});
  w.post_attention_norm =
      finder.Take(prefix + "post_attention_layernorm.weight", {hidden});
  w.gate_proj =
      finder.TakeMatrix(mlp + "gate_proj.weight", intermediate, hidden);
  w.up_proj = finder.TakeMatrix(mlp + "up_proj.weight", intermediate, hidden);
  w.down_proj =
      finder.TakeMatrix(mlp + "down_proj.weight", hidden, intermediate);
  const bool mlp_bias = config.mlp_bias;
  w.gate_bias = finder.TakeIf(mlp_bias, mlp + "gate_proj.bias", {intermediate});
  w.up_bias = finder.TakeIf(mlp_bias, mlp + "up_proj.bias", {intermediate});
  w.down_bias = finder.TakeIf(mlp_bias, mlp + "down_proj.bias", {hidden});
  return w;
}

}  // namespace

std::vector<const TensorView*> ModelWeights::AllTensors() const {
  std::vector<const TensorView*> all;
  const auto add = [&all](const TensorView& tensor) { all.push_back(&tensor); };
  const auto add_if = [&all](const std::optional<TensorView>& tensor) {
    if (tensor.has_value()) all.push_back(&*tensor);
  };
  const auto add_matrix = [&all](const WeightMatrix& matrix) {
    for (const TensorView* tensor : matrix.Tensors()) all.push_back(tensor);
  };
  add_matrix(embedding);
  for (const LayerWeights& w : layers) {
    add(w.input_norm);
    for (const auto* matrix : {&w.q_proj, &w.k_proj, &w.v_proj, &w.o_proj}) {
      add_matrix(*matrix);
    }
    add(w.post_attention_norm);
    for (const auto* matrix : {&w.gate_proj, &w.up_proj, &w.down_proj}) {
      add_matrix(*matrix);
    }
    for (const auto* tensor :
         {&w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias, &w.q_norm, &w.k_norm,
          &w.gate_bias, &w.up_bias, &w.down_bias}) {
      add_if(*tensor);
    }
  }
  add(final_norm);
  if (lm_head.has_value()) add_matrix(*lm_head);
  return all;
}

absl::StatusOr<ModelWeights> LoadModelWeights(const std::string& model_dir,
                                              const ModelConfig& config) {
  ModelWeights weights;
  BATON_ASSIGN_OR_RETURN(const auto set, SafetensorsSet::Open(model_dir));
  weights.storage = set;
  const int64_t hidden = config.hidden_size;
  const int64_t vocab = config.vocab_size;
  TensorFinder finder(*set);
  weights.embedding =
      finder.TakeMatrix("model.embed_tokens.weight", vocab, hidden);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(TakeLayer(finder, config, layer));
    // A config may ask for many more layers than there are.
    BATON_RETURN_IF_ERROR(finder.status());
  }
  weights.final_norm = finder.Take("model.norm.weight", {hidden});
  // With tied embeddings a head in the file is a copy that nobody reads.
  if (!config.tie_word_embeddings) {
    weights.lm_head = finder.TakeMatrix("lm_head.weight", vocab, hidden);
  }
  BATON_RETURN_IF_ERROR(finder.status());
  return weights;
}

}  // namespace baton::engine
