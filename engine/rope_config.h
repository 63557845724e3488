// What a config.json says of rotary position embedding.
#pragma once

#include <string>

#include "engine/json_fields.h"
#include "engine/model_config.h"

namespace baton::engine {

// Sets rope_theta, rope_scaling, rotary_dim and layer_turns, and raises
// max_position where YaRN stretches it. Errors are the fields' of `file`.
// REQUIRES: architecture, num_layers, head_dim and max_position are set.
void ReadRope(const std::string& file, JsonFields& fields, ModelConfig& config);

// What YaRN multiplies turned elements by, so that more attention goes to what
// is far away (Peng et al., section 3.4), with the weight that some models give
// to that.
double YarnMagnitude(double factor, double weight = 1.0);

}  // namespace baton::engine
