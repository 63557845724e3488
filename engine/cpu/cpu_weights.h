// The weights as the forward pass reads them: packed matrices, norms and biases
// in float32. Packed once at load; constant afterwards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cpu/memory_arena.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_team.h"
#include "engine/cpu/weight_dtype.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine::cpu {

// Panels of the gate matrix that lie before as many of the up matrix: together
// a strip of the product, which SwiGLU turns into one group of activations.
inline constexpr int32_t kGatePanels = kGroupInputs / kPanelColumns;

// Panels of a unit (packed_matrix.h): as many as a kernel call takes at once.
inline constexpr int32_t kWideUnit = 4;

// A bias is empty when the model has none; else one value per output of its
// matrix, padding included (zero).
struct CpuExpertWeights {
  PackedMatrix gate_up;  // as a layer's
  std::vector<float> gate_up_bias;
  PackedMatrix down;
  std::vector<float> down_bias;
};

// Of latent attention (LatentConfig, model_config.h).
struct CpuLatentWeights {
  // What queries are made from, if there is such, then what is kept of a token,
  // which begins at output `key_column`: both padded to whole panels.
  PackedMatrix down;
  int32_t key_column = 0;
  std::vector<float> query_norm;  // [query_rank], or empty
  std::vector<float> norm;        // [rank]
  PackedMatrix queries;           // heads, each padded to whole panels
  // Heads of `rank` outputs, and of value_dim.
  PackedMatrix key_up;
  PackedMatrix value_up;
};

struct CpuLayerWeights {
  std::vector<float> input_norm;  // [hidden]
  // Models with latent attention have this in place of the next four.
  CpuLatentWeights latent;
  // Heads of Q, then of K, then of V, each padded to whole panels.
  PackedMatrix qkv;
  std::vector<float> qkv_bias;
  std::vector<float> q_norm;  // [head_dim], or empty
  std::vector<float> k_norm;  // [head_dim], or empty
  std::vector<float> sinks;   // [num_heads], or empty
  PackedMatrix o;
  std::vector<float> o_bias;
  std::vector<float> attention_out_norm;     // [hidden], or empty
  std::vector<float> feed_forward_out_norm;  // [hidden], or empty
  std::vector<float> post_attention_norm;    // [hidden]
  // kGatePanels of gate, then of up, and so on; both padded to whole strips.
  PackedMatrix gate_up;
  std::vector<float> gate_up_bias;
  PackedMatrix down;
  std::vector<float> down_bias;
  // Layers with experts have these in place of the four above. The router is in
  // bfloat16, whatever the other matrices are in: which experts a token passes
  // through is a matter of small differences.
  PackedMatrix expert_router;
  std::vector<float> router_bias;         // [experts.count], or empty
  std::vector<float> choice_bias;         // [experts.count], or empty
  std::vector<CpuExpertWeights> experts;  // experts.all() of them
};

struct CpuWeights {
  // kMxfp4: that of the experts, all else is in bfloat16.
  WeightDtype dtype = WeightDtype::kBf16;
  int32_t hidden_size = 0;
  std::vector<CpuLayerWeights> layers;
  std::vector<float> final_norm;
  PackedMatrix lm_head;
  // bfloat16, row-major [vocab][hidden]; empty when tied, the embedding then
  // being read from lm_head: one copy of what is often the largest matrix.
  absl::Span<const uint16_t> embedding;

  // What the matrices and the embedding lie in: memory that was packed into,
  // or a mapped file.
  MemoryArena arena;
  std::shared_ptr<const void> mapping;

  // Writes the hidden_size values of a token's embedding.
  void ReadEmbedding(TokenId token, float* x) const;
  // Of the packed matrices and their scales: what one step reads, unless there
  // are experts whose turn it is not.
  int64_t matrix_bytes() const;
};

// One matrix of the model: its name in a packed file, its shape, and where it
// belongs.
struct MatrixPlace {
  std::string name;
  PackedShape shape;
  PackedMatrix* matrix = nullptr;
};

// All matrices of a model in a fixed order; makes room for its layers in
// `weights`, whose dtype is set. The pointers are into `weights`.
std::vector<MatrixPlace> MatrixPlaces(const ModelConfig& config,
                                      CpuWeights& weights);

// Told how much of the weights is packed, from 0 to 1, by the calling thread.
using LoadProgress = absl::FunctionRef<void(double share)>;

// OK when weights can be held in MXFP4: there are experts, and the files have
// them all so; else InvalidArgument, which says what is not.
absl::Status CheckMxfp4(const ModelWeights& weights);

// Packs every matrix and drops the file's pages behind it; `weights` is not
// needed afterwards. ResourceExhausted when there is no memory.
// REQUIRES: for kMxfp4, CheckMxfp4.
absl::StatusOr<CpuWeights> PackWeights(const ModelConfig& config,
                                       const ModelWeights& weights,
                                       WeightDtype dtype, ThreadTeam& team,
                                       LoadProgress progress);

}  // namespace baton::engine::cpu
