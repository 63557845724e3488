// What a config.json says of the layers' feed-forward networks: how wide they
// are, and whether there are several of which each token passes through a few.
#pragma once

#include "engine/json_fields.h"
#include "engine/model_config.h"

namespace baton::engine {

// Whose mixtures have experts that all tokens share.
bool HasSharedExperts(Architecture architecture);

// Sets intermediate_size, experts and layer_has_experts. Errors are the
// fields'.
// REQUIRES: architecture and num_layers are set.
void ReadFeedForward(JsonFields& fields, ModelConfig& config);

}  // namespace baton::engine
