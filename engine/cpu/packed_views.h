// Packed weights as those of a file that backends read row by row: for those
// that hold them in another way than the CPU's. Any thread.
#pragma once

#include "engine/cpu/cpu_weights.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine::cpu {

// The result keeps `weights`, and what they lie in. Biases and norms are F32.
// REQUIRES: `weights` are of a model with this config.
ModelWeights ViewPackedWeights(const ModelConfig& config, CpuWeights weights);

}  // namespace baton::engine::cpu
