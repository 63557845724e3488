// LoRA adapters as the CUDA backend's kernels read them (lora.h): in bfloat16,
// all of one rank, narrower ones padded with zeros. Made once at load; constant
// afterwards. A rank of several has of each B the outputs that it computes: of
// what adds to the residual stream all of them.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/lora.h"
#include "engine/cuda/shard.h"
#include "engine/lora_adapter.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

// Outputs of a target's matrix that a rank adds to.
int32_t LoraOutputs(const ModelConfig& config, const Shard& shard,
                    LoraTarget target);

struct DeviceLoras {
  // As LoraNarrowArgs; 0: there are no adapters.
  int32_t rank = 0;
  // [layer][LoraInput]: one for each adapter; null where none adds anything.
  std::vector<std::array<const LoraEntry*, kNumLoraInputs>> layers;
  DeviceBuffer memory;

  const LoraEntry* of(int32_t layer, LoraInput input) const {
    return layers[layer][static_cast<size_t>(input)];
  }
};

// Waits for the stream. ResourceExhausted when the device has too little
// memory.
absl::StatusOr<DeviceLoras> LoadDeviceLoras(
    absl::Span<const LoraAdapter> adapters, const ModelConfig& config,
    const Shard& shard, Stream& stream);

}  // namespace baton::engine::cuda
