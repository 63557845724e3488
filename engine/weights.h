// The weights of a Llama-family decoder, found by their names in a model
// directory or a GGUF file and checked against its config. Views only: no
// matrix is copied or converted; a backend packs them as it likes
// (weight_matrix.h, and float_convert.h for norms and biases).
//
// Constant after loading, readable from any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model_config.h"
#include "engine/safetensors.h"
#include "engine/weight_matrix.h"

namespace baton::engine {

// Matrices are [outputs, inputs], row-major: y = x W^T + bias. With
// q_size = num_heads * head_dim and kv_size = num_kv_heads * head_dim. Heads
// lie one after another in the rows; RoPE pairs element i of a head with
// element i + head_dim / 2.
struct ExpertWeights {
  WeightMatrix gate_proj;  // [experts.intermediate_size, hidden]
  WeightMatrix up_proj;    // [experts.intermediate_size, hidden]
  WeightMatrix down_proj;  // [hidden, experts.intermediate_size]
  // When experts.bias: of gate and up in turns,
  // [2 * experts.intermediate_size], and [hidden].
  std::optional<TensorView> gate_up_bias, down_bias;
};

// Of latent attention (LatentConfig).
struct LatentWeights {
  // When query_rank: [query_rank, hidden], and [query_rank].
  std::optional<WeightMatrix> query_down;
  std::optional<TensorView> query_norm;
  WeightMatrix queries;   // [heads * query_dim(), query_rank or hidden]
  WeightMatrix down;      // [rank + rope_dim, hidden]
  TensorView norm;        // [rank]
  WeightMatrix key_up;    // of each head U^T: [heads * rank, nope_dim]
  WeightMatrix value_up;  // of each head V: [heads * value_dim, rank]
};

struct LayerWeights {
  TensorView input_norm;  // [hidden]
  // Models with latent attention have this in place of Q, K and V.
  std::optional<LatentWeights> latent;
  WeightMatrix q_proj;  // [q_size, hidden]
  WeightMatrix k_proj;  // [kv_size, hidden]
  WeightMatrix v_proj;  // [kv_size, hidden]
  WeightMatrix o_proj;  // [hidden, AttentionSize()]
  std::optional<TensorView> q_bias, k_bias, v_bias;  // when qkv_bias
  std::optional<TensorView> o_bias;                  // when o_bias
  std::optional<TensorView> q_norm, k_norm;          // [head_dim], when qk_norm
  std::optional<TensorView> sinks;  // [num_heads], when attention_sinks
  TensorView post_attention_norm;   // [hidden], before the feed-forward network
  // [hidden], when post_norms: behind attention, and behind the network.
  std::optional<TensorView> attention_out_norm, feed_forward_out_norm;
  WeightMatrix gate_proj;  // [intermediate, hidden]
  WeightMatrix up_proj;    // [intermediate, hidden]
  WeightMatrix down_proj;  // [hidden, intermediate]
  std::optional<TensorView> gate_bias, up_bias, down_bias;  // when mlp_bias
  // Layers with experts have these in place of the three matrices above.
  std::optional<WeightMatrix> expert_router;  // [experts.count, hidden]
  std::optional<TensorView> router_bias;  // [experts.count], when router_bias
  std::optional<TensorView> choice_bias;  // [experts.count], when choice_bias
  std::vector<ExpertWeights> experts;     // experts.all() of them

  // All matrices that are there, in a fixed order; those of attention first.
  std::vector<const WeightMatrix*> Matrices() const;
  std::vector<const WeightMatrix*> AttentionMatrices() const;
};

struct ModelWeights {
  WeightMatrix embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  TensorView final_norm;  // [hidden]
  // [vocab, hidden]; none when the embedding is used (tie_word_embeddings).
  std::optional<WeightMatrix> lm_head;
  // Keeps the files of all views mapped.
  std::shared_ptr<const void> storage;

  // All views that are there, in a fixed order (embedding, layers, ...), with
  // all that the matrices are made of.
  std::vector<const TensorView*> AllTensors() const;
  // All matrices, in the same order.
  std::vector<const WeightMatrix*> AllMatrices() const;
};

// Of `shared` experts that all tokens pass through and that a file has as one
// network, each by itself.
std::vector<ExpertWeights> SplitShared(WeightMatrix gate, WeightMatrix up,
                                       WeightMatrix down, int32_t shared);

// Loads from `model`, a GGUF file or a directory. Tensors in the files that the
// model does not use are ignored. NotFound names the file and the missing
// tensor; InvalidArgument the file, the tensor, the expected and the found
// shape, or what is wrong with its content; Unimplemented a tensor of a type
// that Baton does not read.
absl::StatusOr<ModelWeights> LoadModelWeights(const std::string& model,
                                              const ModelConfig& config);

}  // namespace baton::engine
