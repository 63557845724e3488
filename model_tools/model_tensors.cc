#include "model_tools/model_tensors.h"

#include "absl/strings/str_cat.h"
#include "engine/mxfp4.h"

namespace baton::model_tools {
namespace {

using engine::ModelConfig;

// Of gpt-oss, all of a layer in one tensor, inputs before outputs; in MXFP4
// two, outputs before inputs.
void ListStackedExperts(const ModelConfig& c, const std::string& mlp,
                        bool mxfp4, std::vector<TensorSpec>* tensors) {
  const engine::ExpertsConfig& experts = c.experts;
  const int64_t hidden = c.hidden_size;
  const int64_t inner = experts.intermediate_size;
  tensors->push_back(
      {mlp + "router.weight", {experts.count, hidden}, TensorRole::kMatrix});
  tensors->push_back({mlp + "router.bias", {experts.count}, TensorRole::kBias});
  const auto add = [&](const char* name, int64_t inputs, int64_t outputs,
                       TensorRole role) {
    const int64_t groups = inputs / engine::kMxfp4Group;
    if (mxfp4) {
      tensors->push_back(
          {absl::StrCat(mlp, name, "_blocks"),
           {experts.count, outputs, groups, engine::kMxfp4GroupBytes},
           TensorRole::kMxfp4Numbers});
      tensors->push_back({absl::StrCat(mlp, name, "_scales"),
                          {experts.count, outputs, groups},
                          TensorRole::kMxfp4Exponents});
    } else {
      tensors->push_back(
          {absl::StrCat(mlp, name), {experts.count, inputs, outputs}, role});
    }
    tensors->push_back({absl::StrCat(mlp, name, "_bias"),
                        {experts.count, outputs},
                        TensorRole::kBias});
  };
  add("experts.gate_up_proj", hidden, 2 * inner, TensorRole::kMatrix);
  add("experts.down_proj", inner, hidden, TensorRole::kResidualMatrix);
}

// Of latent attention, in place of Q, K and V.
void ListLatent(const ModelConfig& c, const std::string& attention,
                std::vector<TensorSpec>* tensors) {
  const engine::LatentConfig& latent = c.latent;
  const int64_t hidden = c.hidden_size;
  const int64_t heads = c.num_heads;
  const auto add = [&](const char* name, std::vector<int64_t> shape,
                       TensorRole role) {
    tensors->push_back(
        {absl::StrCat(attention, name, ".weight"), std::move(shape), role});
  };
  int64_t inputs = hidden;
  const char* queries = "q_proj";
  if (latent.query_rank > 0) {
    inputs = latent.query_rank;
    queries = "q_b_proj";
    add("q_a_proj", {inputs, hidden}, TensorRole::kMatrix);
    add("q_a_layernorm", {inputs}, TensorRole::kNorm);
  }
  add(queries, {heads * latent.query_dim(), inputs},
      TensorRole::kQueryKeyMatrix);
  add("kv_a_proj_with_mqa", {latent.rank + latent.rope_dim, hidden},
      TensorRole::kQueryKeyMatrix);
  add("kv_a_layernorm", {latent.rank}, TensorRole::kNorm);
  add("kv_b_proj", {heads * (latent.nope_dim + latent.value_dim), latent.rank},
      TensorRole::kMatrix);
}

void ListLayer(const ModelConfig& c, int32_t layer, bool mxfp4,
               std::vector<TensorSpec>* tensors) {
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const int64_t q_size = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_size = int64_t{c.num_kv_heads} * c.head_dim;
  const int64_t hidden = c.hidden_size;
  const int64_t intermediate = c.intermediate_size;
  const auto add = [&](const char* name, std::vector<int64_t> shape,
                       TensorRole role) {
    tensors->push_back({absl::StrCat(prefix, name), std::move(shape), role});
  };
  // A matrix, and its bias where the model has one.
  const auto add_linear = [&](const char* name, int64_t outputs, int64_t inputs,
                              TensorRole role, bool bias) {
    tensors->push_back(
        {absl::StrCat(prefix, name, ".weight"), {outputs, inputs}, role});
    if (bias) {
      tensors->push_back(
          {absl::StrCat(prefix, name, ".bias"), {outputs}, TensorRole::kBias});
    }
  };
  add("input_layernorm.weight", {hidden}, TensorRole::kNorm);
  const bool fused = c.architecture == engine::Architecture::kPhi3;
  if (c.IsLatent()) {
    ListLatent(c, prefix + "self_attn.", tensors);
  } else if (fused) {
    // Values, too, are drawn as queries and keys are.
    add_linear("self_attn.qkv_proj", q_size + 2 * kv_size, hidden,
               TensorRole::kQueryKeyMatrix, c.qkv_bias);
  } else {
    add_linear("self_attn.q_proj", q_size, hidden, TensorRole::kQueryKeyMatrix,
               c.qkv_bias);
    add_linear("self_attn.k_proj", kv_size, hidden, TensorRole::kQueryKeyMatrix,
               c.qkv_bias);
    add_linear("self_attn.v_proj", kv_size, hidden, TensorRole::kMatrix,
               c.qkv_bias);
  }
  if (c.qk_norm) {
    add("self_attn.q_norm.weight", {c.head_dim}, TensorRole::kNorm);
    add("self_attn.k_norm.weight", {c.head_dim}, TensorRole::kNorm);
  }
  add_linear("self_attn.o_proj", hidden, c.AttentionSize(),
             TensorRole::kResidualMatrix, c.o_bias);
  add("post_attention_layernorm.weight", {hidden}, TensorRole::kNorm);
  if (c.post_norms) {
    add("pre_feedforward_layernorm.weight", {hidden}, TensorRole::kNorm);
    add("post_feedforward_layernorm.weight", {hidden}, TensorRole::kNorm);
  }
  if (c.architecture == engine::Architecture::kGptOss) {
    add("self_attn.sinks", {c.num_heads}, TensorRole::kBias);
    return ListStackedExperts(c, prefix + "mlp.", mxfp4, tensors);
  }
  if (c.LayerHasExperts(layer)) {
    const bool mixtral = c.architecture == engine::Architecture::kMixtral;
    const std::string block = mixtral ? "block_sparse_moe." : "mlp.";
    const int64_t inner = c.experts.intermediate_size;
    add((block + "gate.weight").c_str(), {c.experts.count, hidden},
        TensorRole::kMatrix);
    if (c.experts.choice_bias) {
      add((block + "gate.e_score_correction_bias").c_str(), {c.experts.count},
          TensorRole::kBias);
    }
    const auto add_network = [&](const std::string& expert, int64_t width) {
      const auto add_part = [&](const char* name, int64_t outputs,
                                int64_t inputs, TensorRole role) {
        add((expert + name).c_str(), {outputs, inputs}, role);
      };
      add_part(mixtral ? "w1.weight" : "gate_proj.weight", width, hidden,
               TensorRole::kMatrix);
      add_part(mixtral ? "w3.weight" : "up_proj.weight", width, hidden,
               TensorRole::kMatrix);
      add_part(mixtral ? "w2.weight" : "down_proj.weight", hidden, width,
               TensorRole::kResidualMatrix);
    };
    for (int32_t i = 0; i < c.experts.count; ++i) {
      add_network(absl::StrCat(block, "experts.", i, "."), inner);
    }
    // Those that all tokens share are one network in files.
    if (c.experts.shared > 0) {
      add_network(block + "shared_experts.", c.experts.shared * inner);
    }
    return;
  }
  if (fused) {
    add_linear("mlp.gate_up_proj", 2 * intermediate, hidden,
               TensorRole::kMatrix, c.mlp_bias);
  } else {
    add_linear("mlp.gate_proj", intermediate, hidden, TensorRole::kMatrix,
               c.mlp_bias);
    add_linear("mlp.up_proj", intermediate, hidden, TensorRole::kMatrix,
               c.mlp_bias);
  }
  add_linear("mlp.down_proj", hidden, intermediate, TensorRole::kResidualMatrix,
             c.mlp_bias);
}

}  // namespace

int64_t TensorSpec::num_elements() const {
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

engine::DType TensorSpec::TypeIn(engine::DType dtype) const {
  return role == TensorRole::kMxfp4Numbers ||
                 role == TensorRole::kMxfp4Exponents
             ? engine::DType::kU8
             : dtype;
}

std::vector<TensorSpec> ListTensors(const ModelConfig& config, bool mxfp4) {
  const int64_t hidden = config.hidden_size;
  std::vector<TensorSpec> tensors;
  tensors.push_back({"model.embed_tokens.weight",
                     {config.vocab_size, hidden},
                     TensorRole::kEmbedding});
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    ListLayer(config, layer, mxfp4, &tensors);
  }
  tensors.push_back({"model.norm.weight", {hidden}, TensorRole::kNorm});
  if (!config.tie_word_embeddings) {
    tensors.push_back(
        {"lm_head.weight", {config.vocab_size, hidden}, TensorRole::kLmHead});
  }
  return tensors;
}

int64_t CountParameters(const ModelConfig& config) {
  int64_t n = 0;
  for (const TensorSpec& tensor : ListTensors(config)) {
    n += tensor.num_elements();
  }
  return n;
}

}  // namespace baton::model_tools
