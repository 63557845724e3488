// What both the engine and the router need to know of a model from the metadata
// of its GGUF file, so that they say the same of it.
//
// Plain values; ReadSummary is pure, any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/ids.h"

namespace baton::gguf {

struct Summary {
  // "llama", "qwen2", "qwen3" or "qwen3moe": what the other keys start with.
  std::string architecture;
  // Hugging Face's name of it: "LlamaForCausalLM", ...
  std::string model_class;
  int32_t num_layers = 0;
  int32_t vocab_size = 0;
  // Most positions of one sequence; where YaRN stretches it, stretched.
  int32_t context_length = 0;
  std::optional<TokenId> bos;
  // The file names up to three tokens; control tokens that end a turn in the
  // models that have them count too, as transformers' generation_config.json
  // has it for those models.
  std::vector<TokenId> eos;
};

// NotFound, InvalidArgument (a key is missing or wrong) or Unimplemented (an
// architecture that Baton does not know), naming the file and the key.
absl::StatusOr<Summary> ReadSummary(const GgufFile& file);

}  // namespace baton::gguf
