#include "engine/weights.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_file.h"
#include "common/status_macros.h"
#include "engine/gguf_weights.h"
#include "engine/latent_weights.h"
#include "engine/matrix_views.h"
#include "engine/tensor_finder.h"

namespace baton::engine {
namespace {

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

// Files have one network for all of them, as wide as they are together.
void TakeSharedExperts(TensorFinder& finder, const ModelConfig& config,
                       const std::string& module, const ExpertNames& names,
                       LayerWeights& w) {
  const int32_t shared = config.experts.shared;
  if (shared == 0) return;
  const int64_t hidden = config.hidden_size;
  const int64_t inner = config.experts.intermediate_size;
  WeightMatrix gate =
      finder.TakeMatrix(module + names.gate, shared * inner, hidden);
  WeightMatrix up =
      finder.TakeMatrix(module + names.up, shared * inner, hidden);
  WeightMatrix down =
      finder.TakeMatrix(module + names.down, hidden, shared * inner);
  if (!finder.status().ok()) return;
  for (ExpertWeights& expert :
       SplitShared(std::move(gate), std::move(up), std::move(down), shared)) {
    w.experts.push_back(std::move(expert));
  }
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
  for (int32_t i = 0; i < config.experts.count; ++i) {
    const std::string expert = absl::StrCat(block, "experts.", i);
    w.experts.push_back(
        {finder.TakeMatrix(expert + names.gate, inner, hidden),
         finder.TakeMatrix(expert + names.up, inner, hidden),
         finder.TakeMatrix(expert + names.down, hidden, inner)});
  }
  TakeSharedExperts(finder, config, block + "shared_experts", names, w);
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
  if (config.IsLatent()) {
    w.latent = TakeLatent(finder, config, attention);
  } else if (fused) {
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
  w.o_proj =
      finder.TakeMatrix(attention + "o_proj", hidden, config.AttentionSize());
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

std::vector<ExpertWeights> SplitShared(WeightMatrix gate, WeightMatrix up,
                                       WeightMatrix down, int32_t shared) {
  std::vector<ExpertWeights> experts;
  if (shared == 1) {
    experts.push_back({std::move(gate), std::move(up), std::move(down)});
    return experts;
  }
  const auto all_gate = std::make_shared<const WeightMatrix>(std::move(gate));
  const auto all_up = std::make_shared<const WeightMatrix>(std::move(up));
  const auto all_down = std::make_shared<const WeightMatrix>(std::move(down));
  const int64_t inner = all_gate->rows / shared;
  for (int32_t i = 0; i < shared; ++i) {
    const OutputRun run = {i * inner, inner, inner};
    experts.push_back({PartOf(all_gate, run, inner, 0, all_gate->columns),
                       PartOf(all_up, run, inner, 0, all_up->columns),
                       PartOf(all_down, {0, all_down->rows, all_down->rows},
                              all_down->rows, i * inner, inner)});
  }
  return experts;
}

std::vector<const WeightMatrix*> LayerWeights::AttentionMatrices() const {
  if (!latent.has_value()) return {&q_proj, &k_proj, &v_proj, &o_proj};
  std::vector<const WeightMatrix*> all;
  if (latent->query_down.has_value()) all.push_back(&*latent->query_down);
  all.insert(all.end(), {&latent->queries, &latent->down, &latent->key_up,
                         &latent->value_up, &o_proj});
  return all;
}

std::vector<const WeightMatrix*> LayerWeights::Matrices() const {
  std::vector<const WeightMatrix*> all = AttentionMatrices();
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
    const size_t of_attention = w.AttentionMatrices().size();
    for (size_t i = 0; i < matrices.size(); ++i) {
      if (i == of_attention) add(w.post_attention_norm);
      add_matrix(*matrices[i]);
    }
    for (const auto* tensor :
         {&w.q_bias, &w.k_bias, &w.v_bias, &w.o_bias, &w.q_norm, &w.k_norm,
          &w.gate_bias, &w.up_bias, &w.down_bias, &w.choice_bias, &w.sinks,
          &w.router_bias, &w.attention_out_norm, &w.feed_forward_out_norm}) {
      add_if(*tensor);
    }
    if (w.latent.has_value()) {
      add_if(w.latent->query_norm);
      add(w.latent->norm);
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
