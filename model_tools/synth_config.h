// config.json and its companions of a model that is made up, or that comes
// from a file without them. Pure; any thread.
#pragma once

#include <string>

#include "common/json.h"
#include "engine/dtype.h"
#include "engine/model_config.h"

namespace baton::model_tools {

// The content of config.json: LoadModelConfig reads it back as `config`, except
// for biases that no architecture has (in GGUF files).
// REQUIRES: a window and layers without positions only where such models have
// them.
nlohmann::ordered_json ConfigJson(const engine::ModelConfig& config,
                                  engine::DType dtype);

// The content of generation_config.json.
nlohmann::ordered_json GenerationConfigJson(const engine::ModelConfig& config);

}  // namespace baton::model_tools
