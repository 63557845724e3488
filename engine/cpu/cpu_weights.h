// The weights as the forward pass reads them: matrices packed in bfloat16,
// norms and biases in float32. Packed once at load; constant afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cpu/thread_team.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine::cpu {

// A bias is empty when the model has none; else one value per output of its
// matrix, padding included (zero).
struct CpuLayerWeights {
  std::vector<float> input_norm;  // [hidden]
  PackedMatrix qkv;               // Q, K and V below each other
  std::vector<float> qkv_bias;
  std::vector<float> q_norm;  // [head_dim], or empty
  std::vector<float> k_norm;  // [head_dim], or empty
  PackedMatrix o;
  std::vector<float> o_bias;
  std::vector<float> post_attention_norm;  // [hidden]
  PackedMatrix gate_up;                    // gate and up below each other
  std::vector<float> gate_up_bias;
  PackedMatrix down;
  std::vector<float> down_bias;
};

class CpuWeights final {
 public:
  // Reads every tensor; `weights` is not needed afterwards.
  CpuWeights(const ModelConfig& config, const ModelWeights& weights,
             ThreadTeam& team);

  // Writes the hidden_size values of a token's embedding.
  void ReadEmbedding(TokenId token, float* x) const;

  const CpuLayerWeights& layer(int32_t index) const { return layers_[index]; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const PackedMatrix& lm_head() const { return lm_head_; }

 private:
  const int32_t hidden_size_;
  // Row-major [vocab][hidden]; empty when tied, the embedding then being read
  // from lm_head_: one copy of what is often the largest matrix.
  AlignedBuffer<uint16_t> embedding_;
  std::vector<CpuLayerWeights> layers_;
  std::vector<float> final_norm_;
  PackedMatrix lm_head_;
};

}  // namespace baton::engine::cpu
