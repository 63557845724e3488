// The weights of latent attention (LatentConfig, model_config.h) as DeepSeek's
// files have them. Any thread.
#pragma once

#include <string>

#include "engine/model_config.h"
#include "engine/tensor_finder.h"
#include "engine/weights.h"

namespace baton::engine {

// What LoadModelWeights takes in place of q_proj, k_proj and v_proj from a
// layer whose attention's names begin with `attention`. Errors are the
// finder's.
LatentWeights TakeLatent(TensorFinder& finder, const ModelConfig& config,
                         const std::string& attention);

// The views of `both`, [heads * (nope_dim + value_dim), rank], of each head
// what makes its keys and then what makes its values.
void SetKeyAndValueViews(const ModelConfig& config, WeightMatrix both,
                         LatentWeights& weights);

}  // namespace baton::engine
