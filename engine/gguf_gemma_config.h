// What GGUF files of Gemma 3 say beside others'. Any thread.
#pragma once

#include "absl/status/status.h"
#include "common/gguf/gguf_file.h"
#include "engine/model_config.h"

namespace baton::engine {

// Sets what gemma_config.h is about. Errors name the file and the key:
// InvalidArgument, or Unimplemented for what Baton does not know.
// REQUIRES: num_layers, hidden_size, num_heads and head_dim are set.
absl::Status ReadGgufGemma(const gguf::GgufFile& file, ModelConfig& config);

}  // namespace baton::engine
