// The weights as the CUDA backend's kernels read them: in device memory,
// matrices in tiles (weight_tiles.h), norms and biases in float32. Made once at
// load; constant afterwards.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_team.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/matmul.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine::cuda {

// Null vectors are those that the model has not.
struct DeviceLayer {
  const float* input_norm = nullptr;
  DeviceMatrix qkv;  // heads of Q, of K, of V
  const float* q_norm = nullptr;
  const float* k_norm = nullptr;
  DeviceMatrix o;
  const float* post_attention_norm = nullptr;
  // Tiles of gate and of up in turns (MatmulOutput::kSwiglu).
  DeviceMatrix gate_up;
  DeviceMatrix down;
};

struct DeviceWeights {
  std::vector<DeviceLayer> layers;
  const float* final_norm = nullptr;
  DeviceMatrix lm_head;
  // bfloat16 [vocab][hidden]; null when it is read from lm_head (tied).
  const uint16_t* embedding = nullptr;
  // What the matrices and the embedding take.
  int64_t matrix_bytes = 0;

  std::vector<DeviceBuffer> memory;
};

// Rows of a matrix of the model that are outputs, one after another, of a
// matrix on the device. No matrix: outputs that are zero.
struct OutputRows {
  const WeightMatrix* matrix = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

// Writes `tiles` tiles from `first_tile` on of the matrix whose outputs are
// `rows`, to `out`. Pure, any thread; for tests and for loading.
// REQUIRES: out holds tiles * 16 * PaddedInputs(inputs) elements.
void PackTiles(const std::vector<OutputRows>& rows, int32_t inputs,
               int64_t first_tile, int64_t tiles, uint16_t* out);

// Copies and converts with `team`. `progress` is called with the share that is
// done. ResourceExhausted when the device has too little memory.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(
    const ModelConfig& config, const ModelWeights& weights,
    cpu::ThreadTeam& team, Stream& stream,
    absl::FunctionRef<void(double)> progress);

}  // namespace baton::engine::cuda
