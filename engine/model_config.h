// The geometry of a Llama-family decoder: config.json of a Hugging Face model
// directory, or the metadata of a GGUF file, checked. Plain values, constant
// after loading.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/ids.h"
#include "engine/quantization_config.h"

namespace baton::engine {

enum class Architecture {
  kLlama,
  kMistral,
  kQwen2,
  kQwen3,
  kMixtral,
  kQwen3Moe,
  kGlm4Moe,
  kPhi3,
  kSmolLm3,
  kGptOss,
  kGemma3,
  kDeepseekV2,
  kDeepseekV3,
  kGlm4MoeLite
};

// "LlamaForCausalLM", ...
const char* ArchitectureName(Architecture architecture);

// How positions are stretched beyond the trained context.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kFactors, kYarn };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  // Llama 3.1 only (transformers' modeling_rope_utils, "llama3").
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  // Llama 3.1 and YaRN: positions of the context before it was stretched.
  double original_max_position = 8192;
  // YaRN only (Peng et al. 2023, "YaRN: Efficient context window extension of
  // large language models"): pairs that turn more than beta_fast times within
  // the original context keep their frequency, those that turn less than
  // beta_slow times have it divided by `factor`, and those between are blended.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  // Whether the pairs where blending begins and ends are whole numbers.
  bool truncate = true;
  // What turned elements of queries and keys are multiplied by.
  double attention_factor = 1.0;
  // YaRN, of models with latent attention: the weight of YarnMagnitude
  // (rope_config.h) whose square scores are multiplied by; 0: they are not.
  double score_weight = 0.0;
  // LongRoPE, GGUF files, and what is made from them: the frequency of pair i
  // is divided by factors[i]; RotaryDim() / 2 of them.
  std::vector<double> factors;
};

// A mixture of experts (Shazeer et al. 2017, "Outrageously large neural
// networks"; Jiang et al. 2024, "Mixtral of experts"): of `count` feed-forward
// networks a token passes through the `per_token` whose logits of the layer's
// expert router are largest. Their outputs are summed, each times its share:
// its score, divided by the sum of the scores of those chosen when
// `normalized`, times `scale`.
//
// With kSigmoid (DeepSeek-AI 2024, "DeepSeek-V3 technical report") a layer may
// have a bias for each expert, by which the choice is made, but not its share.
//
// With `groups` > 1 of them (DeepSeek-AI 2024, "DeepSeek-V2: a strong,
// economical, and efficient mixture-of-experts language model") experts are
// groups of neighbours, of which a token may choose from `chosen_groups`: those
// with the largest score of an expert, or with kSigmoid the largest sum of two.
//
// Besides, every token passes through `shared` experts (Dai et al. 2024,
// "DeepSeekMoE"), whose share is 1. They are numbered after those that are
// chosen from.
//
// With `swiglu_limit` L (OpenAI 2025, "gpt-oss-120b & gpt-oss-20b model card")
// an expert's SwiGLU is g / (1 + exp(-1.702 g)) * (u + 1), of a gate
// g = min(gate, L) and u = up, kept within -L and L.
struct ExpertsConfig {
  enum class Score {
    kSoftmax,  // over all logits
    kSigmoid,  // of each
  };
  int32_t count = 0;  // to choose from; 0: the model has none
  int32_t per_token = 0;
  int32_t shared = 0;
  int32_t intermediate_size = 0;  // of one expert
  Score score = Score::kSoftmax;
  int32_t groups = 1;  // a divisor of count
  int32_t chosen_groups = 1;
  bool choice_bias = false;  // kSigmoid only
  bool normalized = true;
  double scale = 1.0;
  bool router_bias = false;
  bool bias = false;          // of each expert's matrices
  double swiglu_limit = 0.0;  // 0: SwiGLU as all others have it

  // Experts of a layer, and those that a token passes through.
  int32_t all() const { return count + shared; }
  int32_t passed() const { return per_token + shared; }
};

// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). Of a token
// nothing is kept but c, `rank` numbers, normalized, and r, `rope_dim` numbers,
// turned by RoPE, the same for all heads. Head h has the key (U_h c, r) and the
// value V_h c; its query is (n, t), of nope_dim and rope_dim elements, of which
// RoPE turns the second; queries, too, may come from few numbers, `query_rank`,
// normalized. As n . (U_h c) = (U_h^T n) . c, and a sum of V_h c is V_h times a
// sum of c, attention itself runs on what is kept: all heads' queries, (U_h^T
// n, t), read one key, (c, r), of which c is the value. So the KV of such a
// model has one head, head_dim = rank + rope_dim and num_kv_heads = 1, and
// KvLayout::shared_value_dim = rank.
struct LatentConfig {
  int32_t rank = 0;        // of keys and values; 0: attention as others have it
  int32_t query_rank = 0;  // 0: queries come from the hidden state
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t value_dim = 0;  // of V_h c, of each head

  int32_t query_dim() const { return nope_dim + rope_dim; }
};

// What the gate of a feed-forward network goes through before it is multiplied.
enum class Activation {
  kSilu,  // x / (1 + exp(-x)): SwiGLU
  // x / (1 + exp(-2 sqrt(2 / pi) (x + 0.044715 x^3))), which is GELU with
  // a tanh for the normal distribution (Hendrycks and Gimpel 2016, "Gaussian
  // error linear units"): GeGLU.
  kGeluTanh,
};

struct ModelConfig {
  Architecture architecture = Architecture::kLlama;
  int32_t hidden_size = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  LatentConfig latent;
  // Of layers without experts; 0 when there are none.
  int32_t intermediate_size = 0;
  ExpertsConfig experts;
  // For models where only some layers have experts; empty: all layers have when
  // there are any. Otherwise num_layers entries.
  std::vector<bool> layer_has_experts;
  int32_t vocab_size = 0;
  // Most positions of one sequence, prompt and output together.
  int32_t max_position = 0;
  double rms_norm_eps = 1e-6;
  // What the weights of norms are more than files have them.
  double norm_offset = 0.0;
  // RMSNorm, with weights of its own, of what attention and the feed-forward
  // network give, before the residual stream has it (Gemma Team 2025, "Gemma 3
  // technical report").
  bool post_norms = false;
  // What a token's embedding is multiplied by before the first layer.
  double embedding_scale = 1.0;
  Activation activation = Activation::kSilu;
  // Products of queries and keys are divided by its root; 0: head_dim.
  double query_scalar = 0.0;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  // RoPE turns so many of the first elements of a head of Q or K, an even
  // number, element i with i + rotary_dim / 2, and leaves the others; 0: all.
  int32_t rotary_dim = 0;
  // Of latent attention: whether files have next to each other, in pairs, what
  // RoPE turns together.
  bool rope_interleaved = false;
  // For models where only some layers know positions (Yang et al. 2025, "RoPE
  // to NoPE and back again"): in the others RoPE turns nothing. Empty: all
  // layers do. Otherwise num_layers entries.
  std::vector<bool> layer_turns;
  // A token sees at most the last `sliding_window` positions, itself included;
  // none: all of them.
  std::optional<int32_t> sliding_window;
  // For models where only some layers slide; empty: all layers do when
  // sliding_window is set. Otherwise num_layers entries.
  std::vector<bool> layer_slides;
  // Layers that slide turn by this base, and nothing stretches them; none: as
  // others do.
  std::optional<double> sliding_rope_theta;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;  // Qwen2, or attention_bias
  bool o_bias = false;    // attention_bias of Llama
  bool qk_norm = false;   // Qwen3, or use_qk_norm: RMSNorm of each head of Q, K
  bool mlp_bias = false;
  // Each query head has a logit of its own (Xiao et al. 2023, "Efficient
  // streaming language models with attention sinks") that takes part in the
  // softmax as a key would whose value is zero.
  bool attention_sinks = false;

  // How the matrices of a directory are stored.
  QuantizationConfig quantization;

  // From generation_config.json when present, else config.json.
  std::optional<TokenId> bos_token_id;
  std::vector<TokenId> eos_token_ids;

  bool IsLatent() const { return latent.rank > 0; }
  // Of all heads together, what attention gives and o_proj reads.
  int64_t AttentionSize() const {
    return int64_t{num_heads} * (IsLatent() ? latent.value_dim : head_dim);
  }
  int32_t RotaryDim() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  bool LayerTurns(int32_t layer) const {
    return layer_turns.empty() || layer_turns[layer];
  }
  bool LayerHasExperts(int32_t layer) const {
    return experts.count > 0 &&
           (layer_has_experts.empty() || layer_has_experts[layer]);
  }
  // What products of queries and keys are multiplied by.
  double ScoreScale() const;
  bool LayerSlides(int32_t layer) const {
    return sliding_window.has_value() &&
           (layer_slides.empty() || layer_slides[layer]);
  }
};

// Which layers of gpt-oss slide where nothing says it: every other one, from
// the first on.
std::vector<bool> LayersInTurns(int32_t num_layers);

// rope_scaling.rope_type of RoPE by a list of `factors`, which only Baton's own
// config.json files have.
inline constexpr char kFactorsRopeType[] = "baton_factors";

// Reads the metadata of `model` if that is a GGUF file, else the directory's
// config.json (and generation_config.json when there is one). Errors name the
// file and the field, as CreateEngine says.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

}  // namespace baton::engine
