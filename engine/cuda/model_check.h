// Which models the CUDA backend runs, and on which devices. Pure; any thread.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cuda/device_runtime.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"

namespace baton::engine::cuda {

// Of `ranks` devices as `device` is, with KV memory of that layout.
// Unimplemented: there are no kernels for the model; InvalidArgument: so many
// devices cannot share it; FailedPrecondition: the device has too little memory
// of its blocks. The message names the field of the model.
absl::Status CheckModel(const ModelConfig& config, const KvLayout& layout,
                        int32_t ranks, const DeviceProperties& device);

}  // namespace baton::engine::cuda
