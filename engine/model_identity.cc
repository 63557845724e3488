#include "engine/model_identity.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "engine/identity_hash.h"

namespace baton::engine {
namespace {

// Part of the identity: raise it when the bytes that are hashed change.
constexpr int64_t kFormatVersion = 1;

constexpr int64_t kHashWholeUpTo = int64_t{64} << 20;
constexpr int64_t kPieceBytes = 4096;
constexpr int64_t kPieces = 16;
// Of an expert's, of which there are thousands.
constexpr int64_t kExpertPieces = 2;

void AddConfig(const ModelConfig& config, IdentityHash& hash) {
  hash.AddString(ArchitectureName(config.architecture));
  for (int64_t value :
       {config.hidden_size, config.num_layers, config.num_heads,
        config.num_kv_heads, config.head_dim, config.intermediate_size,
        config.vocab_size, config.max_position}) {
    hash.AddInt(value);
  }
  hash.AddDouble(config.rms_norm_eps);
  hash.AddDouble(config.rope_theta);
  const RopeScaling& scaling = config.rope_scaling;
  hash.AddInt(static_cast<int64_t>(scaling.kind));
  hash.AddDouble(scaling.factor);
  hash.AddDouble(scaling.low_freq_factor);
  hash.AddDouble(scaling.high_freq_factor);
  hash.AddDouble(scaling.original_max_position);
  for (double factor : scaling.factors) hash.AddDouble(factor);
  hash.AddInt(config.sliding_window.value_or(0));
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    hash.AddInt(config.LayerSlides(layer));
  }
  for (bool value : {config.tie_word_embeddings, config.qkv_bias, config.o_bias,
                     config.qk_norm, config.mlp_bias}) {
    hash.AddInt(value);
  }
  // What a model does not have is not hashed, so that it keeps the identity
  // that it had before Baton knew of such things.
  if (config.rotary_dim > 0) {
    hash.AddString("rotary_dim");
    hash.AddInt(config.rotary_dim);
  }
  if (!config.layer_turns.empty()) {
    hash.AddString("layer_turns");
    for (const bool turns : config.layer_turns) hash.AddInt(turns);
  }
  if (scaling.kind == RopeScaling::Kind::kYarn) {
    hash.AddString("yarn");
    hash.AddDouble(scaling.beta_fast);
    hash.AddDouble(scaling.beta_slow);
    hash.AddInt(scaling.truncate);
    hash.AddDouble(scaling.attention_factor);
  }
  if (scaling.kind == RopeScaling::Kind::kFactors &&
      scaling.attention_factor != 1.0) {
    hash.AddString("rope_magnitude");
    hash.AddDouble(scaling.attention_factor);
  }
  if (config.sliding_rope_theta.has_value()) {
    hash.AddString("sliding_rope_theta");
    hash.AddDouble(*config.sliding_rope_theta);
  }
  // Not what norms of a file are more than it says: they are the same norms.
  if (config.post_norms) hash.AddString("post_norms");
  if (config.activation == Activation::kGeluTanh) hash.AddString("gelu_tanh");
  if (config.embedding_scale != 1.0) {
    hash.AddString("embedding_scale");
    hash.AddDouble(config.embedding_scale);
  }
  if (config.query_scalar > 0) {
    hash.AddString("query_scalar");
    hash.AddDouble(config.query_scalar);
  }
  if (config.attention_sinks) hash.AddString("attention_sinks");
  if (config.IsLatent()) {
    hash.AddString("latent");
    const LatentConfig& latent = config.latent;
    for (const int32_t value : {latent.rank, latent.query_rank, latent.nope_dim,
                                latent.rope_dim, latent.value_dim}) {
      hash.AddInt(value);
    }
  }
  const ExpertsConfig& experts = config.experts;
  if (experts.count == 0) return;
  if (experts.router_bias || experts.bias || experts.swiglu_limit > 0) {
    hash.AddString("gpt_oss_experts");
    hash.AddInt(experts.router_bias);
    hash.AddInt(experts.bias);
    hash.AddDouble(experts.swiglu_limit);
  }
  for (int64_t value :
       {experts.count, experts.per_token, experts.intermediate_size,
        int32_t{experts.normalized}}) {
    hash.AddInt(value);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    hash.AddInt(config.LayerHasExperts(layer));
  }
  if (experts.groups > 1) {
    hash.AddString("groups");
    hash.AddInt(experts.groups);
    hash.AddInt(experts.chosen_groups);
  }
  if (experts.score == ExpertsConfig::Score::kSoftmax) {
    if (experts.shared > 0 || experts.scale != 1.0) {
      hash.AddString("shared");
      hash.AddInt(experts.shared);
      hash.AddDouble(experts.scale);
    }
    return;
  }
  hash.AddString("sigmoid");
  hash.AddInt(experts.shared);
  hash.AddInt(experts.choice_bias);
  hash.AddDouble(experts.scale);
}

// How to read a matrix whose bytes alone do not say it.
void AddEncoding(const WeightMatrix& matrix, IdentityHash& hash) {
  if (matrix.encoding == WeightEncoding::kPlain &&
      matrix.interleaved_head == 0) {
    return;
  }
  hash.AddString(matrix.name);
  hash.AddString(WeightEncodingName(matrix.encoding));
  for (int64_t value : {matrix.bits, matrix.group_size, matrix.zero_offset,
                        matrix.interleaved_head}) {
    hash.AddInt(value);
  }
  if (matrix.interleaved_first > 0) hash.AddInt(matrix.interleaved_first);
  if (matrix.base != nullptr) {
    for (const int64_t value : {matrix.run.first, matrix.run.rows,
                                matrix.run.stride, matrix.first_column}) {
      hash.AddInt(value);
    }
    AddEncoding(*matrix.base, hash);
  }
  if (matrix.encoding == WeightEncoding::kFp8) {
    hash.AddInt(matrix.block_rows);
    hash.AddInt(matrix.block_columns);
  }
}

// Of large content, so many pieces; all of it when there are none to choose.
void AddContent(absl::Span<const std::byte> bytes, int64_t pieces,
                IdentityHash& hash) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (pieces == 0 || size <= pieces * kPieceBytes) {
    hash.AddBytes(bytes);
    return;
  }
  const int64_t last = size - kPieceBytes;
  for (int64_t i = 0; i < pieces; ++i) {
    // last * i would overflow only beyond 2^59 bytes.
    hash.AddBytes(bytes.subspan(last * i / (pieces - 1), kPieceBytes));
  }
}

absl::flat_hash_set<const TensorView*> TensorsOfExperts(
    const ModelWeights& weights) {
  absl::flat_hash_set<const TensorView*> tensors;
  for (const LayerWeights& layer : weights.layers) {
    for (const ExpertWeights& expert : layer.experts) {
      for (const WeightMatrix* matrix :
           {&expert.gate_proj, &expert.up_proj, &expert.down_proj}) {
        for (const TensorView* view : matrix->Tensors()) tensors.insert(view);
      }
    }
  }
  return tensors;
}

}  // namespace

std::string ModelIdentity(const ModelConfig& config,
                          const ModelWeights& weights) {
  const std::vector<const TensorView*> tensors = weights.AllTensors();
  int64_t total = 0;
  for (const TensorView* tensor : tensors) {
    total += static_cast<int64_t>(tensor->bytes.size());
  }
  IdentityHash hash;
  hash.AddInt(kFormatVersion);
  AddConfig(config, hash);
  const auto of_experts = TensorsOfExperts(weights);
  absl::flat_hash_set<const TensorView*> mapped;
  for (const WeightMatrix* matrix : weights.AllMatrices()) {
    if (!matrix->mapped) continue;
    for (const TensorView* tensor : matrix->Tensors()) mapped.insert(tensor);
  }
  for (const TensorView* tensor : tensors) {
    hash.AddString(tensor->name);
    hash.AddString(DTypeName(tensor->dtype));
    hash.AddInt(static_cast<int64_t>(tensor->shape.size()));
    for (int64_t dimension : tensor->shape) hash.AddInt(dimension);
    const int64_t pieces =
        of_experts.contains(tensor) ? kExpertPieces : kPieces;
    AddContent(tensor->bytes, total <= kHashWholeUpTo ? 0 : pieces, hash);
    // Around each page that is read the kernel maps more: of a large model,
    // gigabytes in all.
    if (mapped.contains(tensor)) ReleasePages(tensor->bytes);
  }
  for (const WeightMatrix* matrix : weights.AllMatrices()) {
    AddEncoding(*matrix, hash);
  }
  return hash.Hex();
}

std::string ConfigIdentity(const ModelConfig& config) {
  IdentityHash hash;
  hash.AddInt(kFormatVersion);
  AddConfig(config, hash);
  return hash.Hex();
}

}  // namespace baton::engine
