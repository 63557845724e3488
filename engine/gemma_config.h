// What Gemma 3's models have beside others' (Gemma Team 2025, "Gemma 3
// technical report"): norms behind attention and the feed-forward network,
// GeGLU, embeddings that are scaled, and two kinds of layers, most of which
// slide and turn by another base. Any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/json_fields.h"
#include "engine/model_config.h"

namespace baton::engine {

// Every so many layers one sees everything, where files do not say otherwise.
inline constexpr int32_t kGemmaSlidingPattern = 6;
// The base by which the others turn.
inline constexpr double kGemmaSlidingTheta = 1e4;

std::vector<bool> GemmaLayersThatSlide(int32_t num_layers, int32_t pattern);

// Sets what all of these models have.
// REQUIRES: hidden_size is set.
void SetGemma(ModelConfig& config);

// The same, and what config.json says of such models, but for RoPE and which
// layers slide. Errors are the fields'.
void ReadGemma(JsonFields& fields, ModelConfig& config);

}  // namespace baton::engine
