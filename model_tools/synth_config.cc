#include "model_tools/synth_config.h"

#include "common/log.h"

namespace baton::model_tools {
namespace {

using engine::Architecture;
using engine::DType;
using engine::ModelConfig;
using engine::RopeScaling;
using nlohmann::ordered_json;

const char* ModelType(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "llama";
    case Architecture::kMistral:
      return "mistral";
    case Architecture::kQwen2:
      return "qwen2";
    case Architecture::kQwen3:
      return "qwen3";
    case Architecture::kMixtral:
      return "mixtral";
    case Architecture::kQwen3Moe:
      return "qwen3_moe";
    case Architecture::kGlm4Moe:
      return "glm4_moe";
    case Architecture::kPhi3:
      return "phi3";
    case Architecture::kSmolLm3:
      return "smollm3";
    case Architecture::kGptOss:
      return "gpt_oss";
    case Architecture::kGemma3:
      return "gemma3_text";
    case Architecture::kDeepseekV2:
      return "deepseek_v2";
    case Architecture::kDeepseekV3:
      return "deepseek_v3";
    case Architecture::kGlm4MoeLite:
      return "glm4_moe_lite";
  }
  LOG(FATAL) << "not an architecture";
}

const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    default:
      return "float32";
  }
}

ordered_json RopeScalingJson(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return nullptr;
    case RopeScaling::Kind::kLinear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings",
               static_cast<int64_t>(scaling.original_max_position)}};
    case RopeScaling::Kind::kYarn: {
      ordered_json json = {
          {"rope_type", "yarn"},
          {"factor", scaling.factor},
          {"beta_fast", scaling.beta_fast},
          {"beta_slow", scaling.beta_slow},
          {"truncate", scaling.truncate},
          {"attention_factor", scaling.attention_factor},
          {"original_max_position_embeddings",
           static_cast<int64_t>(scaling.original_max_position)}};
      if (scaling.score_weight > 0) {
        json["mscale_all_dim"] = scaling.score_weight;
      }
      return json;
    }
    case RopeScaling::Kind::kFactors:
      return {{"rope_type", engine::kFactorsRopeType},
              {"factors", scaling.factors},
              {"attention_factor", scaling.attention_factor}};
  }
  LOG(FATAL) << "not a kind of RoPE scaling";
}

// Of GLM's and DeepSeek's, whose first layers may have none.
void AddSharingExperts(const ModelConfig& c, ordered_json* json) {
  const engine::ExpertsConfig& experts = c.experts;
  (*json)["n_routed_experts"] = experts.count;
  (*json)["n_shared_experts"] = experts.shared;
  (*json)["moe_intermediate_size"] = experts.intermediate_size;
  (*json)["norm_topk_prob"] = experts.normalized;
  (*json)["routed_scaling_factor"] = experts.scale;
  (*json)["n_group"] = experts.groups;
  (*json)["topk_group"] = experts.chosen_groups;
  if (c.architecture == Architecture::kDeepseekV2) {
    (*json)["scoring_func"] = "softmax";
    (*json)["topk_method"] =
        experts.groups > 1 ? "group_limited_greedy" : "greedy";
  } else if (c.architecture != Architecture::kGlm4Moe) {
    (*json)["scoring_func"] = "sigmoid";
    (*json)["topk_method"] = "noaux_tc";
  }
  int32_t dense = 0;
  while (dense < c.num_layers && !c.LayerHasExperts(dense)) ++dense;
  (*json)["first_k_dense_replace"] = dense;
}

// What such a config says of its layers' experts. Layers without any are named.
void AddExperts(const ModelConfig& c, ordered_json* json) {
  const engine::ExpertsConfig& experts = c.experts;
  (*json)["num_experts_per_tok"] = experts.per_token;
  if (c.architecture == Architecture::kMixtral) {
    (*json)["num_local_experts"] = experts.count;
    return;
  }
  if (c.architecture == Architecture::kGlm4Moe || c.IsLatent()) {
    return AddSharingExperts(c, json);
  }
  if (c.architecture == Architecture::kGptOss) {
    (*json)["num_local_experts"] = experts.count;
    (*json)["swiglu_limit"] = experts.swiglu_limit;
    return;
  }
  (*json)["num_experts"] = experts.count;
  (*json)["moe_intermediate_size"] = experts.intermediate_size;
  (*json)["norm_topk_prob"] = experts.normalized;
  (*json)["decoder_sparse_step"] = 1;
  ordered_json without = ordered_json::array();
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    if (!c.LayerHasExperts(layer)) without.push_back(layer);
  }
  (*json)["mlp_only_layers"] = without;
}

// In place of what others say of heads.
void AddLatent(const ModelConfig& c, ordered_json* json) {
  const engine::LatentConfig& latent = c.latent;
  json->erase("head_dim");
  (*json)["num_key_value_heads"] = c.num_heads;
  (*json)["attention_bias"] = false;
  (*json)["q_lora_rank"] =
      latent.query_rank > 0 ? ordered_json(latent.query_rank) : nullptr;
  (*json)["kv_lora_rank"] = latent.rank;
  (*json)["qk_nope_head_dim"] = latent.nope_dim;
  (*json)["qk_rope_head_dim"] = latent.rope_dim;
  (*json)["v_head_dim"] = latent.value_dim;
  if (c.architecture != Architecture::kDeepseekV2) {
    (*json)["rope_interleave"] = c.rope_interleaved;
  }
}

void AddSpecialTokens(const ModelConfig& config, ordered_json* json) {
  if (config.bos_token_id) (*json)["bos_token_id"] = *config.bos_token_id;
  if (config.eos_token_ids.size() == 1) {
    (*json)["eos_token_id"] = config.eos_token_ids.front();
  } else if (!config.eos_token_ids.empty()) {
    (*json)["eos_token_id"] = config.eos_token_ids;
  }
}

}  // namespace

ordered_json ConfigJson(const ModelConfig& c, DType dtype) {
  const bool gpt_oss = c.architecture == Architecture::kGptOss;
  const bool phi = c.architecture == Architecture::kPhi3;
  const bool smollm3 = c.architecture == Architecture::kSmolLm3;
  const bool gemma = c.architecture == Architecture::kGemma3;
  const bool slides =
      gpt_oss || phi || gemma || c.architecture == Architecture::kMistral;
  CHECK(slides || !c.sliding_window.has_value());
  CHECK(smollm3 || c.layer_turns.empty());
  ordered_json json = {
      {"architectures", {engine::ArchitectureName(c.architecture)}},
      {"model_type", ModelType(c.architecture)},
      {"hidden_size", c.hidden_size},
      {"num_hidden_layers", c.num_layers},
      {"num_attention_heads", c.num_heads},
      {"num_key_value_heads", c.num_kv_heads},
      {"head_dim", c.head_dim},
      // Others want a number also where no layer has such a network.
      {"intermediate_size", c.intermediate_size > 0
                                ? c.intermediate_size
                                : c.experts.intermediate_size},
      {"vocab_size", c.vocab_size},
      {"max_position_embeddings", c.max_position},
      {"rms_norm_eps", c.rms_norm_eps},
      {"rope_theta", c.rope_theta},
      {"rope_scaling", RopeScalingJson(c.rope_scaling)},
      {gemma ? "hidden_activation" : "hidden_act",
       gemma ? "gelu_pytorch_tanh" : "silu"},
      {"tie_word_embeddings", c.tie_word_embeddings},
      {"torch_dtype", TorchName(dtype)}};
  if (c.architecture == Architecture::kLlama || smollm3) {
    json["attention_bias"] = c.qkv_bias;
    json["mlp_bias"] = c.mlp_bias;
  } else if (c.architecture == Architecture::kQwen3 ||
             c.architecture == Architecture::kQwen3Moe) {
    json["attention_bias"] = c.qkv_bias;
  } else if (c.architecture == Architecture::kGlm4Moe) {
    json["attention_bias"] = c.qkv_bias;
    json["use_qk_norm"] = c.qk_norm;
  }
  if (phi || c.architecture == Architecture::kGlm4Moe) {
    json["partial_rotary_factor"] =
        static_cast<double>(c.RotaryDim()) / c.head_dim;
  }
  if (slides) {
    json["sliding_window"] = c.sliding_window.has_value()
                                 ? ordered_json(*c.sliding_window)
                                 : nullptr;
  }
  if (smollm3) {
    json["use_sliding_window"] = false;
    json["no_rope_layers"] = ordered_json::array();
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
      json["no_rope_layers"].push_back(c.LayerTurns(layer) ? 1 : 0);
    }
  }
  if (c.architecture == Architecture::kQwen2 ||
      c.architecture == Architecture::kQwen3 ||
      c.architecture == Architecture::kQwen3Moe) {
    json["use_sliding_window"] = false;
  }
  if (gemma) {
    json["query_pre_attn_scalar"] = c.query_scalar;
    json["rope_local_base_freq"] = c.sliding_rope_theta.value_or(c.rope_theta);
  }
  if (gpt_oss || gemma) {
    json["attention_bias"] = c.qkv_bias;
    json["layer_types"] = ordered_json::array();
    for (int32_t layer = 0; layer < c.num_layers; ++layer) {
      json["layer_types"].push_back(c.LayerSlides(layer) ? "sliding_attention"
                                                         : "full_attention");
    }
  }
  if (c.IsLatent()) AddLatent(c, &json);
  if (c.experts.count > 0) AddExperts(c, &json);
  AddSpecialTokens(c, &json);
  return json;
}

ordered_json GenerationConfigJson(const ModelConfig& config) {
  ordered_json json = ordered_json::object();
  AddSpecialTokens(config, &json);
  return json;
}

}  // namespace baton::model_tools
