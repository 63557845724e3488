// What GGUF files say of mixtures with experts that all tokens share: GLM's and
// DeepSeek's. Any thread.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/gguf/gguf_file.h"
#include "engine/model_config.h"

namespace baton::engine {

// Sets of `experts` what is not said of all mixtures, layer_has_experts, and
// intermediate_size where there are layers without. Keys begin with `prefix`
// ("glm4moe."). Errors name the file and the key: InvalidArgument, or
// Unimplemented for what Baton does not know.
// REQUIRES: architecture, num_layers and of experts count and per_token are
// set.
absl::Status ReadGgufSharingExperts(const gguf::GgufFile& file,
                                    const std::string& prefix,
                                    ModelConfig& config);

}  // namespace baton::engine
