#include "engine/weights.h"

#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/status_macros.h"
#include "engine/gguf_weights.h"
#include "engine/mxfp4.h"
#include "engine/quantization_config.h"

namespace baton::engine {
namespace {

// Finds tensors by name and checks them. The first error is remembered; what is
// taken after it is empty.
class TensorFinder {
 public:
  TensorFinder(const SafetensorsSet& set,
               const QuantizationConfig& quantization)
      : set_(set), quantization_(quantization) {}

  const absl::Status& status() const { return status_; }

  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    const TensorView view = TakeAny(name, std::move(shape));
    if (!status_.ok() || IsWeightDType(view.dtype)) return view;
    return Fail(absl::UnimplementedError(absl::StrCat(
        view.file, ": tensor \"", name, "\" is ", DTypeName(view.dtype),
        "; Baton reads weights in F32, F16 and BF16")));
  }

  std::optional<TensorView> TakeIf(bool wanted, const std::string& name,
                                   std::vector<int64_t> shape) {
    if (!wanted) return std::nullopt;
    return Take(name, std::move(shape));
  }

  // Rows [first, first + rows) of the matrix `module`.weight, which has
  // `all_rows`; of plain ones alone.
  WeightMatrix TakeRows(const std::string& module, int64_t all_rows,
                        int64_t columns, int64_t first, int64_t rows) {
    if (quantization_.method != Method::kNone) {
      Fail(absl::UnimplementedError(absl::StrCat(
          set_.source(), ": \"", module,
          "\" is several matrices in one; Baton reads such files without "
          "quantization_config")));
    }
    WeightMatrix matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.mapped = true;
    matrix.values = Take(module + ".weight", {all_rows, columns});
    matrix.name = matrix.values.name;
    if (!status_.ok()) return matrix;
    const int64_t row_bytes =
        static_cast<int64_t>(matrix.values.bytes.size()) / all_rows;
    matrix.values.shape = {rows, columns};
    matrix.values.bytes =
        matrix.values.bytes.subspan(first * row_bytes, rows * row_bytes);
    return matrix;
  }

  // The matrix `module`.weight, or what a quantized file has in its place.
  WeightMatrix TakeMatrix(const std::string& module, int64_t rows,
                          int64_t columns) {
    WeightMatrix matrix;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.mapped = true;
    const std::string name = module + ".weight";
    if (IsFp8(name)) {
      TakeFp8(module, matrix);
    } else if (IsGrouped(module + ".qweight")) {
      TakeGrouped(module, matrix);
    } else {
      matrix.values = Take(name, {rows, columns});
    }
    matrix.name = matrix.values.name;
    return matrix;
  }

  // Of the matrices of all `experts`, in `tensor` one behind another
  // (expert_rows.h), of `outputs` rows each, those of `expert` that `run` says.
  WeightMatrix TakeExpert(const std::string& tensor, int32_t experts,
                          int32_t expert, int64_t outputs, int64_t columns,
                          const OutputRun& run) {
    WeightMatrix matrix;
    matrix.rows = outputs / run.stride;
    matrix.columns = columns;
    matrix.mapped = true;
    matrix.run = run;
    if (quantization_.method == Method::kMxfp4) {
      if (columns % kMxfp4Group != 0) {
        Fail(absl::InvalidArgumentError(absl::StrCat(
            set_.source(), ": tensor \"", tensor, "_blocks\": ", columns,
            " inputs are no whole groups of ", kMxfp4Group)));
        return matrix;
      }
      const int64_t groups = columns / kMxfp4Group;
      matrix.encoding = WeightEncoding::kMxfp4;
      matrix.values = TakeBytes(tensor + "_blocks",
                                {experts, outputs, groups, kMxfp4Group / 2});
      matrix.scales = TakeBytes(tensor + "_scales", {experts, outputs, groups});
      CutExpert(matrix.scales, expert);
    } else {
      matrix.encoding = WeightEncoding::kByInput;
      matrix.values = Take(tensor, {experts, columns, outputs});
    }
    CutExpert(matrix.values, expert);
    matrix.name = matrix.values.name;
    return matrix;
  }

  // Of `tensor`, [experts, size], what is of `expert`.
  std::optional<TensorView> TakeExpertBias(bool wanted,
                                           const std::string& tensor,
                                           int32_t experts, int32_t expert,
                                           int64_t size) {
    std::optional<TensorView> view = TakeIf(wanted, tensor, {experts, size});
    if (view.has_value()) CutExpert(*view, expert);
    return view;
  }

 private:
  using Method = QuantizationConfig::Method;

  // Whether there is a matrix of that name, as quantized files have them.
  bool IsFp8(const std::string& name) const {
    const TensorView* const tensor = set_.Find(name);
    return quantization_.method == Method::kFp8 && tensor != nullptr &&
           tensor->dtype == DType::kF8E4M3;
  }
  bool IsGrouped(const std::string& name) const {
    return (quantization_.method == Method::kGptq ||
            quantization_.method == Method::kAwq) &&
           set_.Find(name) != nullptr;
  }

  // Of any element type.
  TensorView TakeAny(const std::string& name, std::vector<int64_t> shape) {
    if (!status_.ok()) return {};
    const TensorView* tensor = set_.Find(name);
    if (tensor == nullptr) {
      return Fail(absl::NotFoundError(
          absl::StrCat(set_.source(), ": tensor \"", name, "\" is missing")));
    }
    if (tensor->shape != shape) {
      return Fail(absl::InvalidArgumentError(
          absl::StrCat(tensor->file, ": tensor \"", name, "\" has shape ",
                       ShapeString(tensor->shape), ", config.json asks for ",
                       ShapeString(shape))));
    }
    return *tensor;
  }

  // What lies behind the first of its sizes, of one index.
  void CutExpert(TensorView& view, int32_t expert) const {
    if (!status_.ok()) return;
    const size_t bytes = view.bytes.size() / view.shape[0];
    view.bytes = view.bytes.subspan(expert * bytes, bytes);
    view.shape.erase(view.shape.begin());
  }

  TensorView TakeBytes(const std::string& name, std::vector<int64_t> shape) {
    const TensorView view = TakeAny(name, std::move(shape));
    if (!status_.ok() || view.dtype == DType::kU8) return view;
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(view.file, ": tensor \"", view.name, "\" is ",
                     DTypeName(view.dtype), ", it must be U8")));
  }

  TensorView TakeIntegers(const std::string& name, std::vector<int64_t> shape) {
    const TensorView view = TakeAny(name, std::move(shape));
    if (!status_.ok() || view.dtype == DType::kI32) return view;
    return Fail(absl::InvalidArgumentError(
        absl::StrCat(view.file, ": tensor \"", name, "\" is ",
                     DTypeName(view.dtype), ", it must be I32")));
  }

  // The parts of a GPTQ or AWQ matrix (group_blocks.h).
  void TakeGrouped(const std::string& module, WeightMatrix& m) {
    const bool awq = quantization_.method == QuantizationConfig::Method::kAwq;
    m.encoding = awq ? WeightEncoding::kAwq : WeightEncoding::kGptq;
    m.bits = quantization_.bits;
    m.zero_offset = quantization_.zero_offset;
    m.group_size = static_cast<int32_t>(
        quantization_.group_size > 0 ? quantization_.group_size : m.columns);
    const int64_t per_word = 32 / m.bits;
    const int64_t groups = (m.columns + m.group_size - 1) / m.group_size;
    if (m.rows % per_word != 0 || (!awq && m.columns % per_word != 0)) {
      Fail(absl::InvalidArgumentError(absl::StrCat(
          set_.source(), ": tensor \"", module, ".qweight\": a matrix ",
          ShapeString({m.rows, m.columns}), " cannot be packed in words of ",
          per_word, " weights")));
      return;
    }
    m.values =
        TakeIntegers(module + ".qweight",
                     awq ? std::vector<int64_t>{m.columns, m.rows / per_word}
                         : std::vector<int64_t>{m.columns / per_word, m.rows});
    m.zeros = TakeIntegers(module + ".qzeros", {groups, m.rows / per_word});
    m.scales = Take(module + ".scales", {groups, m.rows});
    m.groups_in_order = true;
    if (awq || set_.Find(module + ".g_idx") == nullptr) return;
    m.group_index = TakeIntegers(module + ".g_idx", {m.columns});
    m.groups_in_order = CheckGroupIndex(m.group_index, groups, m.group_size);
  }

  // An FP8 matrix and its scales (fp8_rows.h).
  void TakeFp8(const std::string& module, WeightMatrix& m) {
    m.encoding = WeightEncoding::kFp8;
    m.values = TakeAny(module + ".weight", {m.rows, m.columns});
    // Which name it has says nothing: weights are multiplied by either.
    std::string name = module + ".weight_scale_inv";
    if (set_.Find(name) == nullptr) name = module + ".weight_scale";
    const TensorView* const scales = set_.Find(name);
    std::vector<int64_t> shape =
        scales != nullptr ? scales->shape : std::vector<int64_t>{1};
    m.block_columns = m.columns;
    if (shape.empty() || shape == std::vector<int64_t>{1}) {
      m.block_rows = m.rows;
    } else if (shape == std::vector<int64_t>{m.rows} ||
               shape == std::vector<int64_t>{m.rows, 1}) {
      m.block_rows = 1;
    } else if (quantization_.block_rows > 0) {
      m.block_rows = quantization_.block_rows;
      m.block_columns = quantization_.block_columns;
      shape = {(m.rows + m.block_rows - 1) / m.block_rows,
               (m.columns + m.block_columns - 1) / m.block_columns};
    } else {
      shape = {m.rows, 1};
    }
    m.scales = Take(name, std::move(shape));
  }

  // Whether it has neighbours in one group, in order.
  bool CheckGroupIndex(const TensorView& index, int64_t groups,
                       int64_t group_size) {
    bool in_order = true;
    for (size_t at = 0; at < index.bytes.size(); at += sizeof(int32_t)) {
      int32_t group;
      std::memcpy(&group, index.bytes.data() + at, sizeof(group));
      const auto input = static_cast<int64_t>(at / sizeof(group));
      in_order = in_order && group == input / group_size;
      if (group >= 0 && group < groups) continue;
      Fail(absl::InvalidArgumentError(
          absl::StrCat(index.file, ": tensor \"", index.name, "\" names group ",
                       group, " of ", groups)));
      return false;
    }
    return in_order;
  }

  TensorView Fail(absl::Status error) {
    if (status_.ok()) status_ = std::move(error);
    return {};
  }

  const SafetensorsSet& set_;
  const QuantizationConfig& quantization_;
  absl::Status status_;
};

// Names of the parts of a layer with experts.
struct ExpertNames {
  const char* block;
  const char* gate;
  const char* up;
  const char* down;
};

ExpertNames NamesOfExperts(Architecture architecture) {
  if (architecture == Architecture::kMixtral) {
    return {"block_sparse_moe.", ".w1", ".w3", ".w2"};
  }
  return {"mlp.", ".gate_proj", ".up_proj", ".down_proj"};
}

void TakeExperts(TensorFinder& finder, const ModelConfig& config,
                 const std::string& prefix, LayerWeights& w) {
  const ExpertNames names = NamesOfExperts(config.architecture);
  const std::string block = prefix + names.block;
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.experts.intermediate_size;
  w.expert_router =
      finder.TakeMatrix(block + "gate", config.experts.count, hidden);
  w.choice_bias = finder.TakeIf(config.experts.choice_bias,
                                block + "gate.e_score_correction_bias",
                                {config.experts.count});
  for (int32_t i = 0; i < config.experts.all(); ++i) {
    const std::string expert = i < config.experts.count
                                   ? absl::StrCat(block, "experts.", i)
                                   : block + "shared_experts";
    w.experts.push_back(
        {finder.TakeMatrix(expert + names.gate, inner, hidden),
         finder.TakeMatrix(expert + names.up, inner, hidden),
         finder.TakeMatrix(expert + names.down, hidden, inner)});
  }
}

// Of gpt-oss, whose experts lie in one tensor.
void TakeStackedExperts(TensorFinder& finder, const ModelConfig& config,
                        const std::string& mlp, LayerWeights& w) {
  const ExpertsConfig& experts = config.experts;
  const int64_t hidden = config.hidden_size;
  const int64_t inner = experts.intermediate_size;
  w.expert_router = finder.TakeMatrix(mlp + "router", experts.count, hidden);
  w.router_bias =
      finder.TakeIf(experts.router_bias, mlp + "router.bias", {experts.count});
  const std::string gate_up = mlp + "experts.gate_up_proj";
  const std::string down = mlp + "experts.down_proj";
  for (int32_t i = 0; i < experts.count; ++i) {
    const auto part = [&](int64_t first) {
      return finder.TakeExpert(gate_up, experts.count, i, 2 * inner, hidden,
                               {first, 1, 2});
    };
    w.experts.push_back(
        {part(0), part(1),
         finder.TakeExpert(down, experts.count, i, hidden, inner, {0, 1, 1}),
         finder.TakeExpertBias(experts.bias, gate_up + "_bias", experts.count,
                               i, 2 * inner),
         finder.TakeExpertBias(experts.bias, down + "_bias", experts.count, i,
                               hidden)});
  }
}

// What names of tensors begin with; of a model that reads images, two ways.
std::string RootOf(const SafetensorsSet& set) {
  for (const char* const root :
       {"language_model.model.", "model.language_model."}) {
    if (set.Find(absl::StrCat(root, "embed_tokens.weight")) != nullptr) {
      return root;
    }
  }
  return "model.";
}

LayerWeights TakeLayer(TensorFinder& finder, const ModelConfig& config,
                       const std::string& root, int32_t layer) {
  const std::string prefix = absl::StrCat(root, "layers.", layer, ".");
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t head_dim = config.head_dim;
  const int64_t q_size = config.num_heads * head_dim;
  const int64_t kv_size = config.num_kv_heads * head_dim;

  LayerWeights w;
  w.input_norm = finder.Take(prefix + "input_layernorm.weight", {hidden});
  const bool fused = config.architecture == Architecture::kPhi3;
  if (fused) {
    const auto part = [&](int64_t first, int64_t rows) {
      return finder.TakeRows(attention + "qkv_proj", q_size + 2 * kv_size,
                             hidden, first, rows);
    };
    w.q_proj = part(0, q_size);
    w.k_proj = part(q_size, kv_size);
    w.v_proj = part(q_size + kv_size, kv_size);
  } else {
    w.q_proj = finder.TakeMatrix(attention + "q_proj", q_size, hidden);
    w.k_proj = finder.TakeMatrix(attention + "k_proj", kv_size, hidden);
    w.v_proj = finder.TakeMatrix(attention + "v_proj", kv_size, hidden);
  }
  w.o_proj = finder.TakeMatrix(attention + "o_proj", hidden, q_size);
  const bool qkv_bias = config.qkv_bias;
  w.q_bias = finder.TakeIf(qkv_bias, attention + "q_proj.bias", {q_size});
  w.k_bias = finder.TakeIf(qkv_bias, attention + "k_proj.bias", {kv_size});
  w.v_bias = finder.TakeIf(qkv_bias, attention + "v_proj.bias", {kv_size});
  w.o_bias = finder.TakeIf(config.o_bias, attention + "o_proj.bias", {hidden});
  const bool qk_norm = config.qk_norm;
  w.q_norm = finder.TakeIf(qk_norm, attention + "q_norm.weight", {head_dim});
  w.k_norm = finder.TakeIf(qk_norm, attention + "k_norm.weight", {head_dim});
  w.sinks = finder.TakeIf(config.attention_sinks, attention + "sinks",
                          {config.num_heads});
  const bool posts = config.post_norms;
  w.attention_out_norm = finder.TakeIf(
      posts, prefix + "post_attention_layernorm.weight", {hidden});
  w.feed_forward_out_norm = finder.TakeIf(
      posts, prefix + "post_feedforward_layernorm.weight", {hidden});
  w.post_attention_norm =
      finder.Take(prefix + (posts ? "pre_feedforward" : "post_attention") +
                      "_layernorm.weight",
                  {hidden});
  if (config.architecture == Architecture::kGptOss) {
    TakeStackedExperts(finder, config, mlp, w);
    return w;
  }
  if (config.LayerHasExperts(layer)) {
    TakeExperts(finder, config, prefix, w);
    return w;
  }
  if (fused) {
    const auto part = [&](int64_t first) {
      return finder.TakeRows(mlp + "gate_up_proj", 2 * intermediate, hidden,
                             first, intermediate);
    };
    w.gate_proj = part(0);
    w.up_proj = part(intermediate);
  } else {
    w.gate_proj = finder.TakeMatrix(mlp + "gate_proj", intermediate, hidden);
    w.up_proj = finder.TakeMatrix(mlp + "up_proj", intermediate, hidden);
  }
  w.down_proj = finder.TakeMatrix(mlp + "down_proj", hidden, intermediate);
  const bool mlp_bias = config.mlp_bias;
  w.gate_bias = finder.TakeIf(mlp_bias, mlp + "gate_proj.bias", {intermediate});
  w.up_bias = finder.TakeIf(mlp_bias, mlp + "up_proj.bias", {intermediate});
  w.down_bias = finder.TakeIf(mlp_bias, mlp + "down_proj.bias", {hidden});
  return w;
}

}  // namespace

std::vector<const WeightMatrix*> LayerWeights::Matrices() const {
  std::vector<const WeightMatrix*> all = {&q_proj, &k_proj, &v_proj, &o_proj};
  if (!expert_router.has_value()) {
    all.insert(all.end(), {&gate_proj, &up_proj, &down_proj});
    return all;
  }
  all.push_back(&*expert_router);
  for (const ExpertWeights& expert : experts) {
    all.insert(all.end(),
               {&expert.gate_proj, &expert.up_proj, &expert.down_proj});
  }
  return all;
}

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
    const std::vector<const WeightMatrix*> matrices = w.Matrices();
    for (size_t i = 0; i < matrices.size(); ++i) {
      // Behind those of attention.
      if (i == 4) add(w.post_attention_norm);
      add_matrix(*matrices[i]);
    }
    for (const auto* tensor :
         {&w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias, &w.q_norm, &w.k_norm,
          &w.gate_bias, &w.up_bias, &w.down_bias, &w.choice_bias, &w.sinks,
          &w.router_bias, &w.attention_out_norm, &w.feed_forward_out_norm}) {
      add_if(*tensor);
    }
    for (const ExpertWeights& expert : w.experts) {
      add_if(expert.gate_up_bias);
      add_if(expert.down_bias);
    }
  }
  add(final_norm);
  if (lm_head.has_value()) add_matrix(*lm_head);
  return all;
}

std::vector<const WeightMatrix*> ModelWeights::AllMatrices() const {
  std::vector<const WeightMatrix*> all = {&embedding};
  for (const LayerWeights& w : layers) {
    const std::vector<const WeightMatrix*> matrices = w.Matrices();
    all.insert(all.end(), matrices.begin(), matrices.end());
  }
  if (lm_head.has_value()) all.push_back(&*lm_head);
  return all;
}

absl::StatusOr<ModelWeights> LoadModelWeights(const std::string& model,
                                              const ModelConfig& config) {
  if (gguf::IsGgufFile(model)) return LoadGgufWeights(model, config);
  ModelWeights weights;
  BATON_ASSIGN_OR_RETURN(const auto set, SafetensorsSet::Open(model));
  weights.storage = set;
  const int64_t hidden = config.hidden_size;
  const int64_t vocab = config.vocab_size;
  TensorFinder finder(*set, config.quantization);
  const std::string root = RootOf(*set);
  weights.embedding = finder.TakeMatrix(root + "embed_tokens", vocab, hidden);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(TakeLayer(finder, config, root, layer));
    // A config may ask for many more layers than there are.
    BATON_RETURN_IF_ERROR(finder.status());
  }
  weights.final_norm = finder.Take(root + "norm.weight", {hidden});
  // With tied embeddings a head in the file is a copy that nobody reads.
  if (!config.tie_word_embeddings) {
    weights.lm_head = finder.TakeMatrix("lm_head", vocab, hidden);
  }
  BATON_RETURN_IF_ERROR(finder.status());
  return weights;
}

}  // namespace baton::engine
