// The geometry of a model in a GGUF file, from its metadata: architectures
// llama (Mistral too), qwen2 and qwen3.
//
// The frequency scaling of Llama 3.1 is stored as its result, a tensor of
// divisors: RopeScaling::Kind::kFactors.
//
// Any thread. Errors as LoadModelConfig says, naming the file and the key or
// tensor.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model_config.h"

namespace baton::engine {

absl::StatusOr<ModelConfig> LoadGgufConfig(const std::string& path);

}  // namespace baton::engine
