// The weights as the CUDA backend's kernels read them: in device memory,
// matrices in tiles (weight_tiles.h), their scales, norms and biases in
// float32. Made once at load; constant afterwards. A rank of several has its
// shard of each matrix (shard.h), and norms and the embedding whole.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_team.h"
#include "engine/cuda/device_loras.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/shard.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine::cuda {

// Of latent attention (LatentWeights, engine/weights.h). Of matrices that each
// head has, the first one's are here; the others' follow (expert_matmul.h).
struct DeviceLatent {
  // What queries are made of, if that is here; then keys. Whole on all ranks.
  DeviceMatrix down;
  const float* query_norm = nullptr;
  const float* norm = nullptr;
  DeviceMatrix queries;   // of the rank's heads
  DeviceMatrix key_up;    // [rank][nope_dim] of a head
  DeviceMatrix value_up;  // [value_dim][rank] of a head
};

// Null vectors are those that the model has not.
struct DeviceLayer {
  const float* input_norm = nullptr;
  // One of these two.
  DeviceMatrix qkv;  // heads of Q, of K, of V
  DeviceLatent latent;
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  const float* sinks = nullptr;  // [heads], as AttentionArgs has them
  DeviceMatrix o;
  const float* attention_out_norm = nullptr;
  const float* feed_forward_out_norm = nullptr;
  const float* post_attention_norm = nullptr;
  // Tiles of gate and of up in turns (MatmulOutput::kSwiglu). Layers with
  // experts have those of the first one here; the others' follow
  // (expert_matmul.h).
  DeviceMatrix gate_up;
  DeviceMatrix down;
  // Of layers with experts: bfloat16, whole on all ranks.
  DeviceMatrix expert_router;
  const float* choice_bias = nullptr;  // [experts.count], or null
};

struct DeviceWeights {
  std::vector<DeviceLayer> layers;
  const float* final_norm = nullptr;
  DeviceMatrix lm_head;
  // bfloat16 [vocab][hidden]; null when it is read from a head (tied).
  const uint16_t* embedding = nullptr;
  // That head, with the whole vocabulary: lm_head, unless this is a shard.
  DeviceMatrix tied_embedding;
  // What the matrices, their scales and the embedding take.
  int64_t matrix_bytes = 0;
  // Of the matrices but routers, each once, in the order of WeightFormat from
  // the narrowest on.
  std::vector<WeightFormat> formats;
  // And of routers: of all products.
  std::vector<WeightFormat> ProductFormats() const;
  bool has_experts() const;  // in any layer

  std::vector<DeviceBuffer> memory;
  // Beside the model.
  DeviceLoras loras;
};

// Copies and converts with `team`, to matrices of `format`: the head as well,
// and so a tied embedding; one of its own stays in bfloat16. Without a format
// each matrix gets the one that it has in the file (FormatOf, output_rows.h).
// `progress` is called with the share that is done. ResourceExhausted when the
// device has too little memory. Ranks may load at the same time, with a team
// each. REQUIRES: CheckShards(config, shard.ranks).
absl::StatusOr<DeviceWeights> LoadDeviceWeights(
    const ModelConfig& config, const ModelWeights& weights,
    std::optional<WeightFormat> format, const Shard& shard,
    cpu::ThreadTeam& team, Stream& stream,
    absl::FunctionRef<void(double)> progress);

}  // namespace baton::engine::cuda
