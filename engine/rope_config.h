// What a config.json says of rotary position embedding.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/json_fields.h"
#include "engine/model_config.h"

namespace baton::engine {

// Sets rope_theta, rope_scaling, rotary_dim and layer_turns, and raises
// max_position where YaRN stretches it. Errors are the fields' of `file`.
// REQUIRES: architecture, num_layers, head_dim and max_position are set.
void ReadRope(const std::string& file, JsonFields& fields, ModelConfig& config);

// Of SmolLM3, where its files do not say otherwise: every fourth layer knows no
// positions.
inline constexpr int32_t kNoRopeLayerInterval = 4;

// Which layers know positions where every `interval`th does not; empty: all do.
std::vector<bool> LayersThatTurn(int32_t num_layers, int32_t interval);

// What YaRN multiplies turned elements by, so that more attention goes to what
// is far away (Peng et al., section 3.4), with the weight that some models give
// to that.
double YarnMagnitude(double factor, double weight = 1.0);

// The same of LongRoPE, of a context that had `original` positions, more than
// one, before they became `factor` times as many (Ding et al. 2024, "LongRoPE:
// extending LLM context window beyond 2 million tokens", as Phi-3 has it).
double LongRopeMagnitude(double factor, double original);

}  // namespace baton::engine
