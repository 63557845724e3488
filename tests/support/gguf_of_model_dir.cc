#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/gguf/gguf_tensor_type.h"
#include "common/log.h"
#include "engine/float_convert.h"
#include "engine/model_config.h"
#include "engine/mxfp4_rows.h"
#include "engine/norm_weights.h"
#include "engine/weights.h"
#include "tests/support/gguf_writer.h"

namespace baton::test {
namespace {

using engine::Architecture;
using engine::DType;
using engine::ModelConfig;
using engine::RopeScaling;
using engine::TensorView;
using engine::WeightMatrix;

std::string Text(absl::Span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

uint32_t TypeOf(DType dtype) {
  if (dtype == DType::kF32) return gguf::kF32;
  return dtype == DType::kF16 ? gguf::kF16 : gguf::kBf16;
}

std::string Floats(const TensorView& view) {
  std::vector<float> values(view.num_elements());
  engine::ConvertToFloat(view.dtype, view.bytes, absl::MakeSpan(values));
  return Text(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float)));
}

// As converters write them: a scale, and bytes of the numbers i and i + 16.
std::string Mxfp4Blocks(const WeightMatrix& matrix) {
  constexpr int64_t kGroup = 32;
  constexpr int64_t kHalf = kGroup / 2;
  std::string out;
  const int64_t groups = matrix.columns / kGroup;
  std::vector<uint8_t> codes(matrix.columns), exponents(groups);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    engine::CopyMxfp4Row(matrix, row, codes.data(), exponents.data());
    for (int64_t group = 0; group < groups; ++group) {
      out += static_cast<char>(exponents[group]);
      const uint8_t* const of = codes.data() + group * kGroup;
      for (int64_t i = 0; i < kHalf; ++i) {
        out += static_cast<char>(of[i] | of[i + kHalf] << 4);
      }
    }
  }
  return out;
}

// Rows of `row_bytes` with the halves of each head of `head` rows interleaved.
std::string Interleave(const std::string& rows, int64_t row_bytes,
                       int64_t head) {
  std::string out;
  const int64_t count = static_cast<int64_t>(rows.size()) / row_bytes;
  for (int64_t first = 0; first < count; first += head) {
    for (int64_t i = 0; i < head / 2; ++i) {
      for (const int64_t row : {first + i, first + i + head / 2}) {
        absl::StrAppend(
            &out, absl::string_view(rows).substr(row * row_bytes, row_bytes));
      }
    }
  }
  return out;
}

bool IsGlm(const ModelConfig& config) {
  return config.architecture == Architecture::kGlm4Moe;
}
bool HasShared(const ModelConfig& config) {
  return IsGlm(config) || config.IsLatent();
}
bool IsPhi(const ModelConfig& config) {
  return config.architecture == Architecture::kPhi3;
}
bool IsGemma(const ModelConfig& config) {
  return config.architecture == Architecture::kGemma3;
}
bool IsGptOss(const ModelConfig& config) {
  return config.architecture == Architecture::kGptOss;
}

// What ggml calls a matrix's type, and its rows as it has them.
std::pair<uint32_t, std::string> TypeAndBytes(const WeightMatrix& matrix) {
  if (matrix.encoding == engine::WeightEncoding::kPlain) {
    return {TypeOf(matrix.values.dtype), Text(matrix.values.bytes)};
  }
  if (matrix.encoding == engine::WeightEncoding::kMxfp4) {
    return {gguf::kMxfp4, Mxfp4Blocks(matrix)};
  }
  std::vector<float> values(matrix.rows * matrix.columns);
  engine::ReadRows(matrix, 0, matrix.rows, absl::MakeSpan(values));
  return {gguf::kF32, Text(absl::MakeConstSpan(
                          reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float)))};
}

class ModelWriter final {
 public:
  ModelWriter(const ModelConfig& config, bool experts_apart, GgufWriter& out)
      : config_(config),
        experts_apart_(experts_apart),
        interleaves_(config.architecture == Architecture::kLlama ||
                     config.architecture == Architecture::kMistral ||
                     config.architecture == Architecture::kMixtral ||
                     config.architecture == Architecture::kSmolLm3),
        out_(out) {}

  void AddMatrix(const std::string& name, const WeightMatrix& matrix,
                 bool is_qk = false) {
    CHECK(matrix.encoding == engine::WeightEncoding::kPlain) << name;
    std::string bytes = Text(matrix.values.bytes);
    if (is_qk && interleaves_) {
      bytes =
          Interleave(bytes, matrix.columns * DTypeBytes(matrix.values.dtype),
                     config_.head_dim);
    }
    out_.AddTensor(name, TypeOf(matrix.values.dtype),
                   {matrix.rows, matrix.columns}, bytes);
  }

  // As converters write them: what they multiply by.
  void AddNorm(const std::string& name, const TensorView& view) {
    std::vector<float> values = engine::NormWeights(config_, view);
    out_.AddTensor(name, gguf::kF32, view.shape,
                   Text(absl::MakeConstSpan(
                       reinterpret_cast<const std::byte*>(values.data()),
                       values.size() * sizeof(float))));
  }
  void AddNorm(const std::string& name, const std::optional<TensorView>& view) {
    if (view.has_value()) AddNorm(name, *view);
  }

  // Several in one, those of the first first.
  void AddMatrices(const std::string& name,
                   const std::vector<const WeightMatrix*>& parts) {
    std::string bytes;
    int64_t rows = 0;
    for (const WeightMatrix* const part : parts) {
      CHECK(part->encoding == engine::WeightEncoding::kPlain) << name;
      bytes += Text(part->values.bytes);
      rows += part->rows;
    }
    out_.AddTensor(name, TypeOf(parts[0]->values.dtype),
                   {rows, parts[0]->columns}, bytes);
  }

  void AddVector(const std::string& name, const TensorView& view,
                 bool is_qk = false) {
    std::string bytes = Floats(view);
    if (is_qk && interleaves_) {
      bytes = Interleave(bytes, sizeof(float), config_.head_dim);
    }
    out_.AddTensor(name, gguf::kF32, view.shape, bytes);
  }

  void AddVector(const std::string& name, const std::optional<TensorView>& view,
                 bool is_qk = false) {
    if (view.has_value()) AddVector(name, *view, is_qk);
  }

  void AddLayer(int32_t index, const engine::LayerWeights& w) {
    const std::string p = absl::StrCat("blk.", index, ".");
    AddNorm(p + "attn_norm.weight", w.input_norm);
    if (w.latent.has_value()) {
      AddLatent(p, *w.latent);
    } else if (IsPhi(config_)) {
      AddMatrices(p + "attn_qkv.weight", {&w.q_proj, &w.k_proj, &w.v_proj});
    } else {
      AddMatrix(p + "attn_q.weight", w.q_proj, /*is_qk=*/true);
      AddMatrix(p + "attn_k.weight", w.k_proj, /*is_qk=*/true);
      AddMatrix(p + "attn_v.weight", w.v_proj);
    }
    AddMatrix(p + "attn_output.weight", w.o_proj);
    AddVector(p + "attn_q.bias", w.q_bias, /*is_qk=*/true);
    AddVector(p + "attn_k.bias", w.k_bias, /*is_qk=*/true);
    AddVector(p + "attn_v.bias", w.v_bias);
    AddVector(p + "attn_output.bias", w.o_bias);
    AddNorm(p + "attn_q_norm.weight", w.q_norm);
    AddNorm(p + "attn_k_norm.weight", w.k_norm);
    AddNorm(p + "post_attention_norm.weight", w.attention_out_norm);
    AddNorm(p + "post_ffw_norm.weight", w.feed_forward_out_norm);
    AddNorm(
        p + (IsGlm(config_) || IsGptOss(config_) ? "post_attention_norm.weight"
                                                 : "ffn_norm.weight"),
        w.post_attention_norm);
    AddVector(p + "attn_sinks.weight", w.sinks);
    if (w.expert_router.has_value()) {
      AddExperts(p, w);
      return;
    }
    if (IsPhi(config_)) {
      AddMatrices(p + "ffn_up.weight", {&w.gate_proj, &w.up_proj});
    } else {
      AddMatrix(p + "ffn_gate.weight", w.gate_proj);
      AddMatrix(p + "ffn_up.weight", w.up_proj);
    }
    AddMatrix(p + "ffn_down.weight", w.down_proj);
    AddVector(p + "ffn_gate.bias", w.gate_bias);
    AddVector(p + "ffn_up.bias", w.up_bias);
    AddVector(p + "ffn_down.bias", w.down_bias);
  }

 private:
  // Older files, which have experts apart, have one matrix for keys and values;
  // others those of all heads, of keys turned.
  void AddLatent(const std::string& p, const engine::LatentWeights& w) {
    if (w.query_down.has_value()) {
      AddMatrix(p + "attn_q_a.weight", *w.query_down);
      AddNorm(p + "attn_q_a_norm.weight", w.query_norm);
      AddMatrix(p + "attn_q_b.weight", w.queries);
    } else {
      AddMatrix(p + "attn_q.weight", w.queries);
    }
    AddMatrix(p + "attn_kv_a_mqa.weight", w.down);
    AddNorm(p + "attn_kv_a_norm.weight", w.norm);
    if (experts_apart_) {
      AddMatrix(p + "attn_kv_b.weight", *w.key_up.base);
      return;
    }
    const auto add = [&](const char* name, const WeightMatrix& matrix) {
      const auto [type, bytes] = TypeAndBytes(matrix);
      out_.AddTensor(
          p + name, type,
          {config_.num_heads, matrix.rows / config_.num_heads, matrix.columns},
          bytes);
    };
    add("attn_k_b.weight", w.key_up);
    add("attn_v_b.weight", w.value_up);
  }

  // The router in F32, as converters write it; of the experts' matrices, those
  // of a kind after each other in one tensor.
  void AddExperts(const std::string& p, const engine::LayerWeights& w) {
    const WeightMatrix& router = *w.expert_router;
    out_.AddTensor(p + "ffn_gate_inp.weight", gguf::kF32,
                   {router.rows, router.columns}, Floats(router.values));
    AddVector(p + "exp_probs_b.bias", w.choice_bias);
    AddVector(p + "ffn_gate_inp.bias", w.router_bias);
    if (config_.experts.bias) AddExpertBiases(p, w);
    const size_t count = config_.experts.count;
    const auto add = [&](const std::string& name,
                         WeightMatrix engine::ExpertWeights::*part) {
      if (config_.experts.shared > 0) {
        const WeightMatrix& shared = w.experts[count].*part;
        // Several are parts of one.
        AddMatrix(p + name + "_shexp.weight",
                  shared.base != nullptr ? *shared.base : shared);
      }
      if (experts_apart_) {
        for (size_t i = 0; i < count; ++i) {
          AddMatrix(absl::StrCat(p, name, ".", i, ".weight"),
                    w.experts[i].*part);
        }
        return;
      }
      std::string bytes;
      uint32_t type = 0;
      for (size_t i = 0; i < count; ++i) {
        const auto one = TypeAndBytes(w.experts[i].*part);
        type = one.first;
        bytes += one.second;
      }
      const WeightMatrix& first = w.experts[0].*part;
      out_.AddTensor(p + name + "_exps.weight", type,
                     {static_cast<int64_t>(count), first.rows, first.columns},
                     bytes);
    };
    add("ffn_gate", &engine::ExpertWeights::gate_proj);
    add("ffn_up", &engine::ExpertWeights::up_proj);
    add("ffn_down", &engine::ExpertWeights::down_proj);
  }

  // Of gate and of up apart.
  void AddExpertBiases(const std::string& p, const engine::LayerWeights& w) {
    std::string parts[2];
    std::string down;
    for (const engine::ExpertWeights& expert : w.experts) {
      const std::string both = Floats(*expert.gate_up_bias);
      for (size_t at = 0; at < both.size(); at += sizeof(float)) {
        parts[at / sizeof(float) % 2] += both.substr(at, sizeof(float));
      }
      down += Floats(*expert.down_bias);
    }
    const int64_t count = config_.experts.count;
    const int64_t inner = config_.experts.intermediate_size;
    out_.AddTensor(p + "ffn_gate_exps.bias", gguf::kF32, {count, inner},
                   parts[0]);
    out_.AddTensor(p + "ffn_up_exps.bias", gguf::kF32, {count, inner},
                   parts[1]);
    out_.AddTensor(p + "ffn_down_exps.bias", gguf::kF32,
                   {count, config_.hidden_size}, down);
  }

  const ModelConfig& config_;
  const bool experts_apart_;
  const bool interleaves_;
  GgufWriter& out_;
};

std::string GgufArchitecture(Architecture architecture) {
  if (architecture == Architecture::kQwen2) return "qwen2";
  if (architecture == Architecture::kQwen3Moe) return "qwen3moe";
  if (architecture == Architecture::kGlm4Moe) return "glm4moe";
  if (architecture == Architecture::kGptOss) return "gpt-oss";
  if (architecture == Architecture::kPhi3) return "phi3";
  if (architecture == Architecture::kSmolLm3) return "smollm3";
  if (architecture == Architecture::kGemma3) return "gemma3";
  if (architecture == Architecture::kDeepseekV2 ||
      architecture == Architecture::kDeepseekV3) {
    return "deepseek2";
  }
  return architecture == Architecture::kQwen3 ? "qwen3" : "llama";
}

// What Llama 3.1 divides the frequencies by, as float32.
std::string Llama3Factors(const ModelConfig& c) {
  const RopeScaling& scaling = c.rope_scaling;
  std::string factors;
  for (int32_t i = 0; i < c.head_dim / 2; ++i) {
    const double frequency = std::pow(c.rope_theta, -2.0 * i / c.head_dim);
    // Turns within the original context.
    const double turns =
        scaling.original_max_position * frequency / (2 * std::numbers::pi);
    const double blend =
        std::clamp((turns - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor),
                   0.0, 1.0);
    const double factor = 1.0 / ((1.0 - blend) / scaling.factor + blend);
    absl::StrAppend(&factors, NumberBytes(static_cast<float>(factor)));
  }
  return factors;
}

// LongRoPE, as of a context that was twice stretched; the list that is not
// taken differs.
void AddLongRope(const ModelConfig& c, const std::string& p, GgufWriter& out) {
  out.AddUint32(p + "rope.scaling.original_context_length", c.max_position / 2);
  out.AddFloat(p + "rope.scaling.attn_factor",
               static_cast<float>(c.rope_scaling.attention_factor));
  std::string of_long;
  std::string of_short;
  for (const double factor : c.rope_scaling.factors) {
    of_long += NumberBytes(static_cast<float>(factor));
    of_short += NumberBytes(static_cast<float>(factor / 2));
  }
  out.AddTensor("rope_factors_long.weight", gguf::kF32, {c.RotaryDim() / 2},
                of_long);
  out.AddTensor("rope_factors_short.weight", gguf::kF32, {c.RotaryDim() / 2},
                of_short);
}

void AddConfig(const ModelConfig& c, GgufWriter& out) {
  const std::string arch = GgufArchitecture(c.architecture);
  const std::string p = arch + ".";
  out.AddString("general.architecture", arch);
  out.AddUint32(p + "vocab_size", c.vocab_size);
  out.AddUint32(p + "context_length", c.max_position);
  out.AddUint32(p + "embedding_length", c.hidden_size);
  // Real files of GLM's have a layer that predicts further tokens.
  out.AddUint32(p + "block_count", c.num_layers + (IsGlm(c) ? 1 : 0));
  const bool mixtral = c.architecture == Architecture::kMixtral;
  out.AddUint32(p + "feed_forward_length",
                mixtral ? c.experts.intermediate_size : c.intermediate_size);
  if (c.experts.count > 0) {
    out.AddUint32(p + "expert_count", c.experts.count);
    out.AddUint32(p + "expert_used_count", c.experts.per_token);
    if (!mixtral) {
      out.AddUint32(p + "expert_feed_forward_length",
                    c.experts.intermediate_size);
    }
  }
  if (IsGlm(c)) out.AddUint32(p + "nextn_predict_layers", 1);
  if (HasShared(c)) {
    out.AddUint32(p + "expert_shared_count", c.experts.shared);
    out.AddUint32(p + "expert_gating_func",
                  c.architecture == Architecture::kDeepseekV2 ? 1 : 2);
    out.AddUint32(p + "expert_group_count", c.experts.groups);
    out.AddUint32(p + "expert_group_used_count", c.experts.chosen_groups);
    out.AddFloat(p + "expert_weights_scale",
                 static_cast<float>(c.experts.scale));
    out.AddBool(p + "expert_weights_norm", c.experts.normalized);
    int32_t dense = 0;
    while (dense < c.num_layers && !c.LayerHasExperts(dense)) ++dense;
    out.AddUint32(p + "leading_dense_block_count", dense);
  }
  out.AddUint32(p + "attention.head_count", c.num_heads);
  out.AddUint32(p + "attention.head_count_kv", c.num_kv_heads);
  out.AddUint32(p + "attention.key_length", c.head_dim);
  out.AddUint32(p + "attention.value_length",
                c.IsLatent() ? c.latent.rank : c.head_dim);
  if (c.IsLatent()) {
    out.AddUint32(p + "attention.kv_lora_rank", c.latent.rank);
    if (c.latent.query_rank > 0) {
      out.AddUint32(p + "attention.q_lora_rank", c.latent.query_rank);
    }
    out.AddUint32(p + "attention.key_length_mla", c.latent.query_dim());
    out.AddUint32(p + "attention.value_length_mla", c.latent.value_dim);
  }
  out.AddUint32(p + "rope.dimension_count", c.RotaryDim());
  out.AddFloat(p + "attention.layer_norm_rms_epsilon",
               static_cast<float>(c.rms_norm_eps));
  out.AddFloat(p + "rope.freq_base", static_cast<float>(c.rope_theta));
  const bool slides = IsGptOss(c) || IsPhi(c) || IsGemma(c);
  CHECK(slides || !c.sliding_window.has_value());
  if (slides) {
    out.AddUint32(p + "attention.sliding_window", c.sliding_window.value_or(0));
  }
  if (IsGemma(c)) {
    int32_t pattern = 1;
    while (c.LayerSlides(pattern - 1)) ++pattern;
    out.AddUint32(p + "attention.sliding_window_pattern", pattern);
    out.AddFloat(p + "rope.freq_base_swa",
                 static_cast<float>(*c.sliding_rope_theta));
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kFactors) {
    AddLongRope(c, p, out);
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kLinear) {
    out.AddString(p + "rope.scaling.type", "linear");
    out.AddFloat(p + "rope.scaling.factor",
                 static_cast<float>(c.rope_scaling.factor));
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kYarn) {
    out.AddString(p + "rope.scaling.type", "yarn");
    out.AddFloat(p + "rope.scaling.factor",
                 static_cast<float>(c.rope_scaling.factor));
    out.AddUint32(p + "rope.scaling.original_context_length",
                  static_cast<uint32_t>(c.rope_scaling.original_max_position));
    out.AddFloat(p + "rope.scaling.yarn_beta_fast",
                 static_cast<float>(c.rope_scaling.beta_fast));
    out.AddFloat(p + "rope.scaling.yarn_beta_slow",
                 static_cast<float>(c.rope_scaling.beta_slow));
    if (c.IsLatent()) {
      out.AddFloat(p + "rope.scaling.yarn_log_multiplier",
                   static_cast<float>(c.rope_scaling.score_weight / 10));
    }
  }
  if (c.rope_scaling.kind == RopeScaling::Kind::kLlama3) {
    out.AddTensor("rope_freqs.weight", gguf::kF32, {c.head_dim / 2},
                  Llama3Factors(c));
  }
  if (c.bos_token_id.has_value()) {
    out.AddUint32("tokenizer.ggml.bos_token_id", *c.bos_token_id);
  }
  if (!c.eos_token_ids.empty()) {
    out.AddUint32("tokenizer.ggml.eos_token_id", c.eos_token_ids.front());
  }
}

}  // namespace

GgufWriter GgufOfModelDir(const std::string& dir, bool experts_apart) {
  const auto config = engine::LoadModelConfig(dir);
  CHECK(config.ok()) << config.status();
  const auto weights = engine::LoadModelWeights(dir, *config);
  CHECK(weights.ok()) << weights.status();
  GgufWriter out;
  AddConfig(*config, out);
  ModelWriter writer(*config, experts_apart, out);
  writer.AddMatrix("token_embd.weight", weights->embedding);
  for (size_t i = 0; i < weights->layers.size(); ++i) {
    writer.AddLayer(static_cast<int32_t>(i), weights->layers[i]);
  }
  writer.AddNorm("output_norm.weight", weights->final_norm);
  if (weights->lm_head.has_value()) {
    writer.AddMatrix("output.weight", *weights->lm_head);
  }
  return out;
}

}  // namespace baton::test
