// The tokenizer in a GGUF file's metadata, as the tokenizer.json that Hugging
// Face would have for it: so that there is one implementation, and texts become
// the same tokens whichever file a model came in.
//
// Two kinds (tokenizer.ggml.model): "gpt2", byte-level BPE, whose splitting of
// texts tokenizer.ggml.pre names; and "llama", SentencePiece BPE with a score
// for each token and byte fallback. What the metadata do not hold is taken as
// the models have it that such files are made from: Qwen normalizes to NFC, and
// no token strips the spaces beside it.
#pragma once

#include "absl/status/statusor.h"
#include "common/gguf/gguf_file.h"
#include "common/json.h"

namespace baton::router {

// Pure; any thread. NotFound, InvalidArgument or Unimplemented, naming the file
// and the key.
absl::StatusOr<nlohmann::json> GgufTokenizerJson(const gguf::GgufFile& file);

}  // namespace baton::router
