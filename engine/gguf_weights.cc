// Names of tensors are those of llama.cpp's converter.
#include "engine/gguf_weights.h"

#include <cstddef>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/gguf/gguf_file.h"
#include "common/status_macros.h"
#include "engine/float_convert.h"
#include "engine/latent_weights.h"

namespace baton::engine {
namespace {

using gguf::GgufFile;

// What the views of a model point into.
struct Storage {
  std::shared_ptr<const GgufFile> file;
  // Vectors that are not as the file has them.
  std::deque<std::vector<std::byte>> owned;
};

// Finds tensors by name and checks them. The first error is remembered; what is
// taken after it is empty.
class GgufTensorFinder final {
 public:
  GgufTensorFinder(const ModelConfig& config, Storage& storage)
      : head_dim_(config.head_dim),
        interleaves_(config.architecture == Architecture::kLlama ||
                     config.architecture == Architecture::kMixtral ||
                     config.architecture == Architecture::kSmolLm3),
        storage_(storage) {}

  const absl::Status& status() const { return status_; }

  TensorView Take(const std::string& name, std::vector<int64_t> shape) {
    const gguf::Tensor* const tensor = Find(name, shape);
    if (tensor == nullptr) return {};
    TensorView view = View(*tensor);
    if (!IsWeightDType(view.dtype)) Refuse(*tensor, "F32, F16 and BF16");
    return view;
  }

  std::optional<TensorView> TakeIf(bool wanted, const std::string& name,
                                   std::vector<int64_t> shape) {
    if (!wanted) return std::nullopt;
    return Take(name, std::move(shape));
  }

  // A bias of q or k.
  std::optional<TensorView> TakeHeadsIf(bool wanted, const std::string& name,
                                        int64_t size) {
    std::optional<TensorView> view = TakeIf(wanted, name, {size});
    if (!view.has_value() || !interleaves_ || !status_.ok()) return view;
    const int64_t element = DTypeBytes(view->dtype);
    std::vector<std::byte>& bytes = storage_.owned.emplace_back();
    bytes.resize(view->bytes.size());
    for (int64_t i = 0; i < size; ++i) {
      std::memcpy(bytes.data() + i * element,
                  view->bytes.data() + StoredRow(i, head_dim_) * element,
                  element);
    }
    view->bytes = bytes;
    return view;
  }

  // Vectors of all experts, of gate and of up, in one tensor each: for each
  // expert one with their values in turns.
  std::vector<TensorView> TakeInTurns(const std::string& gate,
                                      const std::string& up, int64_t experts,
                                      int64_t size) {
    const TensorView of_gate = Take(gate, {experts, size});
    const TensorView of_up = Take(up, {experts, size});
    std::vector<TensorView> views(experts);
    if (!status_.ok()) return views;
    std::vector<float> values[2];
    for (const TensorView* view : {&of_gate, &of_up}) {
      std::vector<float>& to = values[view == &of_up];
      to.resize(experts * size);
      ConvertToFloat(view->dtype, view->bytes, absl::MakeSpan(to));
    }
    const int64_t bytes_each = 2 * size * int64_t{sizeof(float)};
    std::vector<std::byte>& bytes = storage_.owned.emplace_back();
    bytes.resize(experts * bytes_each);
    for (int64_t i = 0; i < experts * size; ++i) {
      const float pair[2] = {values[0][i], values[1][i]};
      std::memcpy(bytes.data() + i * int64_t{sizeof(pair)}, pair, sizeof(pair));
    }
    for (int64_t i = 0; i < experts; ++i) {
      views[i] = of_gate;
      views[i].dtype = DType::kF32;
      views[i].shape = {2 * size};
      views[i].bytes =
          absl::MakeConstSpan(bytes).subspan(i * bytes_each, bytes_each);
    }
    return views;
  }

  // A vector for each expert, all in one tensor.
  std::vector<TensorView> TakeOfEach(const std::string& name, int64_t experts,
                                     int64_t size) {
    const TensorView all = Take(name, {experts, size});
    std::vector<TensorView> views(experts);
    if (!status_.ok()) return views;
    const size_t bytes = all.bytes.size() / experts;
    for (int64_t i = 0; i < experts; ++i) {
      views[i] = all;
      views[i].shape = {size};
      views[i].bytes = all.bytes.subspan(i * bytes, bytes);
    }
    return views;
  }

  WeightMatrix TakeMatrix(const std::string& name, int64_t rows,
                          int64_t columns) {
    const gguf::Tensor* const tensor = Find(name, {rows, columns});
    if (tensor == nullptr) return {};
    return Matrix(*tensor, rows, columns);
  }

  bool Has(const std::string& name) const {
    return storage_.file->FindTensor(name) != nullptr;
  }

  // Of a matrix of `of_rows` rows that is several in one, `rows` from `first`.
  WeightMatrix TakeRows(const std::string& name, int64_t of_rows,
                        int64_t columns, int64_t first, int64_t rows) {
    const gguf::Tensor* const tensor = Find(name, {of_rows, columns});
    if (tensor == nullptr) return {};
    return RowsOf(*tensor, of_rows, first, rows);
  }

  // The matrices of all experts that tokens choose from. They lie in one
  // tensor, NAME_exps.weight, or in older files each in its own, NAME.I.weight;
  // as many as wanted, also of what is not there.
  std::vector<WeightMatrix> TakeExperts(const std::string& name, int64_t count,
                                        int64_t rows, int64_t columns) {
    std::vector<WeightMatrix> experts(count);
    if (Has(name + ".0.weight")) {
      for (int64_t i = 0; i < count; ++i) {
        experts[i] =
            TakeMatrix(absl::StrCat(name, ".", i, ".weight"), rows, columns);
      }
      return experts;
    }
    const gguf::Tensor* const tensor =
        Find(name + "_exps.weight", {count, rows, columns});
    if (tensor == nullptr) return experts;
    for (int64_t i = 0; i < count; ++i) {
      experts[i] = RowsOf(*tensor, count * rows, i * rows, rows);
    }
    return experts;
  }

  // A matrix of each head, all in one tensor, one below the other.
  WeightMatrix TakeHeadMatrices(const std::string& name, int64_t heads,
                                int64_t rows, int64_t columns) {
    const gguf::Tensor* const tensor = Find(name, {heads, rows, columns});
    if (tensor == nullptr) return {};
    return RowsOf(*tensor, heads * rows, 0, heads * rows);
  }

  // The matrix of q or k.
  WeightMatrix TakeHeads(const std::string& name, int64_t rows,
                         int64_t columns) {
    WeightMatrix matrix = TakeMatrix(name, rows, columns);
    if (interleaves_) matrix.interleaved_head = head_dim_;
    return matrix;
  }

 private:
  // Of the `of_rows` rows that it has, `rows` from `first`.
  WeightMatrix RowsOf(const gguf::Tensor& tensor, int64_t of_rows,
                      int64_t first, int64_t rows) {
    const int64_t columns = tensor.shape.back();
    const size_t row_bytes = tensor.bytes.size() / of_rows;
    gguf::Tensor part = tensor;
    part.shape = {rows, columns};
    part.bytes = tensor.bytes.subspan(first * row_bytes, rows * row_bytes);
    return Matrix(part, rows, columns);
  }

  WeightMatrix Matrix(const gguf::Tensor& tensor, int64_t rows,
                      int64_t columns) {
    WeightMatrix matrix;
    matrix.name = tensor.name;
    matrix.rows = rows;
    matrix.columns = columns;
    matrix.mapped = true;
    matrix.values = View(tensor);
    switch (tensor.type) {
      case gguf::kF32:
      case gguf::kF16:
      case gguf::kBf16:
        break;
      case gguf::kQ4_0:
        matrix.encoding = WeightEncoding::kGgufQ4_0;
        break;
      case gguf::kQ4_1:
        matrix.encoding = WeightEncoding::kGgufQ4_1;
        break;
      case gguf::kQ5_0:
        matrix.encoding = WeightEncoding::kGgufQ5_0;
        break;
      case gguf::kQ5_1:
        matrix.encoding = WeightEncoding::kGgufQ5_1;
        break;
      case gguf::kQ8_0:
        matrix.encoding = WeightEncoding::kGgufQ8_0;
        break;
      case gguf::kQ4K:
        matrix.encoding = WeightEncoding::kGgufQ4K;
        break;
      case gguf::kQ5K:
        matrix.encoding = WeightEncoding::kGgufQ5K;
        break;
      case gguf::kQ6K:
        matrix.encoding = WeightEncoding::kGgufQ6K;
        break;
      case gguf::kMxfp4:
        matrix.encoding = WeightEncoding::kGgufMxfp4;
        break;
      default:
        Refuse(tensor,
               "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, "
               "Q6_K and MXFP4");
    }
    return matrix;
  }

  const gguf::Tensor* Find(const std::string& name,
                           const std::vector<int64_t>& shape) {
    if (!status_.ok()) return nullptr;
    const std::string& path = storage_.file->path();
    const gguf::Tensor* const tensor = storage_.file->FindTensor(name);
    if (tensor == nullptr) {
      status_ = absl::NotFoundError(
          absl::StrCat(path, ": tensor \"", name, "\" is missing"));
      return nullptr;
    }
    if (tensor->shape != shape) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor \"", name, "\" has shape ",
                       ShapeString(tensor->shape), ", the metadata ask for ",
                       ShapeString(shape)));
      return nullptr;
    }
    return tensor;
  }

  TensorView View(const gguf::Tensor& tensor) const {
    TensorView view;
    view.name = tensor.name;
    view.shape = tensor.shape;
    view.bytes = tensor.bytes;
    view.file = storage_.file->path();
    switch (tensor.type) {
      case gguf::kF32:
        view.dtype = DType::kF32;
        break;
      case gguf::kF16:
        view.dtype = DType::kF16;
        break;
      case gguf::kBf16:
        view.dtype = DType::kBf16;
        break;
      default:
        // Blocks: so many bytes a row.
        view.dtype = DType::kU8;
        view.shape = {static_cast<int64_t>(tensor.bytes.size())};
    }
    return view;
  }

  void Refuse(const gguf::Tensor& tensor, absl::string_view known) {
    status_ = absl::UnimplementedError(absl::StrCat(
        storage_.file->path(), ": tensor \"", tensor.name, "\" is ",
        gguf::FindTensorType(tensor.type)->name, "; Baton reads ", known));
  }

  const int32_t head_dim_;
  const bool interleaves_;
  Storage& storage_;
  absl::Status status_;
};

// One network for all of them, as wide as they are together.
void TakeGgufSharedExperts(GgufTensorFinder& finder,
                           const ExpertsConfig& experts, const std::string& p,
                           int64_t hidden, LayerWeights& w) {
  if (experts.shared == 0) return;
  const int64_t inner = int64_t{experts.shared} * experts.intermediate_size;
  WeightMatrix gate =
      finder.TakeMatrix(p + "ffn_gate_shexp.weight", inner, hidden);
  WeightMatrix up = finder.TakeMatrix(p + "ffn_up_shexp.weight", inner, hidden);
  WeightMatrix down =
      finder.TakeMatrix(p + "ffn_down_shexp.weight", hidden, inner);
  if (!finder.status().ok()) return;
  for (ExpertWeights& expert : SplitShared(std::move(gate), std::move(up),
                                           std::move(down), experts.shared)) {
    w.experts.push_back(std::move(expert));
  }
}

// What files have in pairs, of each `head` rows those from `first` on.
WeightMatrix InterleavedFrom(WeightMatrix matrix, int32_t head, int32_t first) {
  matrix.interleaved_head = head;
  matrix.interleaved_first = first;
  return matrix;
}

LatentWeights TakeGgufLatent(GgufTensorFinder& finder,
                             const ModelConfig& config, const std::string& p) {
  const LatentConfig& latent = config.latent;
  const int64_t hidden = config.hidden_size;
  const int64_t heads = config.num_heads;
  const int32_t query_dim = latent.query_dim();
  LatentWeights w;
  const bool low_rank = latent.query_rank > 0;
  if (low_rank) {
    w.query_down =
        finder.TakeMatrix(p + "attn_q_a.weight", latent.query_rank, hidden);
    w.query_norm = finder.Take(p + "attn_q_a_norm.weight", {latent.query_rank});
  }
  w.queries = InterleavedFrom(
      finder.TakeMatrix(p + (low_rank ? "attn_q_b.weight" : "attn_q.weight"),
                        heads * query_dim,
                        low_rank ? latent.query_rank : hidden),
      query_dim, latent.nope_dim);
  w.down =
      InterleavedFrom(finder.TakeMatrix(p + "attn_kv_a_mqa.weight",
                                        latent.rank + latent.rope_dim, hidden),
                      latent.rank + latent.rope_dim, latent.rank);
  w.norm = finder.Take(p + "attn_kv_a_norm.weight", {latent.rank});
  if (finder.Has(p + "attn_k_b.weight")) {
    w.key_up = finder.TakeHeadMatrices(p + "attn_k_b.weight", heads,
                                       latent.rank, latent.nope_dim);
    w.value_up = finder.TakeHeadMatrices(p + "attn_v_b.weight", heads,
                                         latent.value_dim, latent.rank);
    return w;
  }
  WeightMatrix both = finder.TakeMatrix(
      p + "attn_kv_b.weight", heads * (latent.nope_dim + latent.value_dim),
      latent.rank);
  if (finder.status().ok()) SetKeyAndValueViews(config, std::move(both), w);
  return w;
}

LayerWeights TakeGgufLayer(GgufTensorFinder& finder, const ModelConfig& config,
                           int32_t layer) {
  const std::string p = absl::StrCat("blk.", layer, ".");
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t head_dim = config.head_dim;
  const int64_t q_size = config.num_heads * head_dim;
  const int64_t kv_size = config.num_kv_heads * head_dim;
  const bool qkv_bias = config.qkv_bias;
  const bool mlp_bias = config.mlp_bias;

  LayerWeights w;
  w.input_norm = finder.Take(p + "attn_norm.weight", {hidden});
  const bool phi = config.architecture == Architecture::kPhi3;
  const std::string qkv = p + "attn_qkv.weight";
  if (config.IsLatent()) {
    w.latent = TakeGgufLatent(finder, config, p);
  } else if (phi && finder.Has(qkv)) {
    const int64_t rows = q_size + 2 * kv_size;
    w.q_proj = finder.TakeRows(qkv, rows, hidden, 0, q_size);
    w.k_proj = finder.TakeRows(qkv, rows, hidden, q_size, kv_size);
    w.v_proj = finder.TakeRows(qkv, rows, hidden, q_size + kv_size, kv_size);
  } else {
    w.q_proj = finder.TakeHeads(p + "attn_q.weight", q_size, hidden);
    w.k_proj = finder.TakeHeads(p + "attn_k.weight", kv_size, hidden);
    w.v_proj = finder.TakeMatrix(p + "attn_v.weight", kv_size, hidden);
  }
  w.o_proj = finder.TakeMatrix(p + "attn_output.weight", hidden,
                               config.AttentionSize());
  w.q_bias = finder.TakeHeadsIf(qkv_bias, p + "attn_q.bias", q_size);
  w.k_bias = finder.TakeHeadsIf(qkv_bias, p + "attn_k.bias", kv_size);
  w.v_bias = finder.TakeIf(qkv_bias, p + "attn_v.bias", {kv_size});
  w.o_bias = finder.TakeIf(config.o_bias, p + "attn_output.bias", {hidden});
  w.q_norm =
      finder.TakeIf(config.qk_norm, p + "attn_q_norm.weight", {head_dim});
  w.k_norm =
      finder.TakeIf(config.qk_norm, p + "attn_k_norm.weight", {head_dim});
  w.sinks = finder.TakeIf(config.attention_sinks, p + "attn_sinks.weight",
                          {config.num_heads});
  const bool other_name = config.architecture == Architecture::kGlm4Moe ||
                          config.architecture == Architecture::kGptOss;
  w.attention_out_norm = finder.TakeIf(
      config.post_norms, p + "post_attention_norm.weight", {hidden});
  w.feed_forward_out_norm =
      finder.TakeIf(config.post_norms, p + "post_ffw_norm.weight", {hidden});
  w.post_attention_norm = finder.Take(
      p + (other_name ? "post_attention_norm.weight" : "ffn_norm.weight"),
      {hidden});
  if (config.LayerHasExperts(layer)) {
    const ExpertsConfig& experts = config.experts;
    const int64_t inner = experts.intermediate_size;
    w.expert_router =
        finder.TakeMatrix(p + "ffn_gate_inp.weight", experts.count, hidden);
    w.choice_bias = finder.TakeIf(experts.choice_bias, p + "exp_probs_b.bias",
                                  {experts.count});
    w.router_bias = finder.TakeIf(experts.router_bias, p + "ffn_gate_inp.bias",
                                  {experts.count});
    const int32_t count = experts.count;
    auto gate = finder.TakeExperts(p + "ffn_gate", count, inner, hidden);
    auto up = finder.TakeExperts(p + "ffn_up", count, inner, hidden);
    auto down = finder.TakeExperts(p + "ffn_down", count, hidden, inner);
    for (int32_t i = 0; i < count; ++i) {
      w.experts.push_back(
          {std::move(gate[i]), std::move(up[i]), std::move(down[i]), {}, {}});
    }
    TakeGgufSharedExperts(finder, experts, p, hidden, w);
    if (!experts.bias) return w;
    auto gate_up_bias = finder.TakeInTurns(
        p + "ffn_gate_exps.bias", p + "ffn_up_exps.bias", experts.count, inner);
    auto down_bias =
        finder.TakeOfEach(p + "ffn_down_exps.bias", experts.count, hidden);
    for (int32_t i = 0; i < experts.count; ++i) {
      w.experts[i].gate_up_bias = std::move(gate_up_bias[i]);
      w.experts[i].down_bias = std::move(down_bias[i]);
    }
    return w;
  }
  const std::string ffn_up = p + "ffn_up.weight";
  if (phi) {
    w.gate_proj =
        finder.TakeRows(ffn_up, 2 * intermediate, hidden, 0, intermediate);
    w.up_proj = finder.TakeRows(ffn_up, 2 * intermediate, hidden, intermediate,
                                intermediate);
  } else {
    w.gate_proj =
        finder.TakeMatrix(p + "ffn_gate.weight", intermediate, hidden);
    w.up_proj = finder.TakeMatrix(ffn_up, intermediate, hidden);
  }
  w.down_proj = finder.TakeMatrix(p + "ffn_down.weight", hidden, intermediate);
  w.gate_bias = finder.TakeIf(mlp_bias, p + "ffn_gate.bias", {intermediate});
  w.up_bias = finder.TakeIf(mlp_bias, p + "ffn_up.bias", {intermediate});
  w.down_bias = finder.TakeIf(mlp_bias, p + "ffn_down.bias", {hidden});
  return w;
}

}  // namespace

absl::StatusOr<ModelWeights> LoadGgufWeights(const std::string& path,
                                             const ModelConfig& config) {
  const auto storage = std::make_shared<Storage>();
  BATON_ASSIGN_OR_RETURN(storage->file, GgufFile::Open(path));
  ModelWeights weights;
  weights.storage = storage;
  const int64_t hidden = config.hidden_size;
  const int64_t vocab = config.vocab_size;
  GgufTensorFinder finder(config, *storage);
  weights.embedding = finder.TakeMatrix("token_embd.weight", vocab, hidden);
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    weights.layers.push_back(TakeGgufLayer(finder, config, layer));
    // The metadata may ask for many more layers than there are.
    BATON_RETURN_IF_ERROR(finder.status());
  }
  weights.final_norm = finder.Take("output_norm.weight", {hidden});
  if (!config.tie_word_embeddings) {
    weights.lm_head = finder.TakeMatrix("output.weight", vocab, hidden);
  }
  BATON_RETURN_IF_ERROR(finder.status());
  return weights;
}

}  // namespace baton::engine
