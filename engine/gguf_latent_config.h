// What GGUF files of `deepseek2` say of latent attention. Any thread.
#pragma once

#include "absl/status/status.h"
#include "common/gguf/gguf_file.h"
#include "engine/model_config.h"

namespace baton::engine {

// Sets num_heads, latent, what follows from it (latent_config.h) and
// rope_interleaved. Errors name the file and the key: InvalidArgument,
// NotFound, or Unimplemented for what Baton does not know.
absl::Status ReadGgufLatent(const gguf::GgufFile& file, ModelConfig& config);

// Sets the weight of what YaRN makes of scores.
// REQUIRES: rope_scaling is YaRN's.
absl::Status ReadGgufScoreWeight(const gguf::GgufFile& file,
                                 RopeScaling& scaling);

}  // namespace baton::engine
