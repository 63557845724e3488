// LoRA adapters as the CUDA backend's kernels read them (lora.h): in bfloat16,
// all of one rank, narrower ones padded with zeros. Each has memory of its own,
// which tables name by its place, so that adapters may come and go while the
// tables, and the graphs that name them, stay. A rank of several has of each B
// the outputs that it computes: of what adds to the residual stream all of
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
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

// Ranks as they are padded.
int32_t PaddedLoraRank(int32_t rank);

// An adapter as it is to lie in a device's memory.
struct HostLora {
  // What it adds to a layer's matrices that read the same. Of a part that it
  // adds to, `a` and `b` are where these begin in `image`.
  struct Part {
    int32_t target = 0;  // of its input
    int64_t a = 0;
    int64_t b = 0;
    float scale = 0;
  };
  // [layer][LoraInput]
  std::vector<std::array<std::vector<Part>, kNumLoraInputs>> layers;
  std::vector<std::byte> image;
};

// Any thread. REQUIRES: a padded rank that is not below the adapter's.
HostLora MakeHostLora(const LoraAdapter& adapter, const ModelConfig& config,
                      const Shard& shard, int32_t rank);

struct DeviceLoras {
  // As LoraNarrowArgs; 0: there are no adapters, and none can come.
  int32_t rank = 0;
  // [layer][LoraInput]: one for each place; null where none adds anything.
  std::vector<std::array<LoraEntry*, kNumLoraInputs>> layers;
  DeviceBuffer tables;
  std::vector<DeviceBuffer> memory;  // by place; empty: there is none

  const LoraEntry* of(int32_t layer, LoraInput input) const {
    return layers[layer][static_cast<size_t>(input)];
  }
};

// With places for `places` adapters of that padded rank, and those that are
// given in the first of them. More may come to all matrices where `may_come`.
// Waits for the stream. ResourceExhausted when the device has too little
// memory.
absl::StatusOr<DeviceLoras> LoadDeviceLoras(
    absl::Span<const LoraAdapter> adapters, int32_t places, int32_t rank,
    bool may_come, const ModelConfig& config, const Shard& shard,
    Stream& stream);

// Puts one there; nothing reads the place. Waits for the stream. Errors as
// above: then nothing has changed.
absl::Status PutDeviceLora(const HostLora& lora, int32_t place, Stream& stream,
                           DeviceLoras* loras);

}  // namespace baton::engine::cuda
