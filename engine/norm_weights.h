// The weights of norms, as they are multiplied by. Pure, any thread.
#pragma once

#include <optional>
#include <vector>

#include "engine/model_config.h"
#include "engine/safetensors.h"

namespace baton::engine {

// What `norm` holds, with ModelConfig::norm_offset; nothing of one that is not
// there.
std::vector<float> NormWeights(const ModelConfig& config,
                               const TensorView& norm);
std::vector<float> NormWeights(const ModelConfig& config,
                               const std::optional<TensorView>& norm);

}  // namespace baton::engine
