// The tokenizer of a directory that has tiktoken.model instead of
// tokenizer.json, as Moonshot's models do (Kimi K2, Moonlight), as the
// tokenizer.json that stands for the same.
//
// The file has a line "TOKEN RANK" for each token of the vocabulary, its bytes
// in base64; its rank is its id. OpenAI's tiktoken joins, again and again, the
// neighbours whose joined token has the lowest rank. As a list of merges: every
// way to cut a token into two, in the order of ranks. How texts are split
// before, and how many ids behind the vocabulary are set aside for special
// tokens, is Python code beside it (tokenization_kimi.py), which is not run:
// the tokenizer_class of tokenizer_config.json has to be the one it defines.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/json.h"

namespace baton::router {

// NotFound without the file; InvalidArgument, naming its line or the field, for
// a broken one; Unimplemented for another tokenizer_class. Any thread.
absl::StatusOr<nlohmann::json> TiktokenTokenizerJson(
    const std::string& model_dir);

}  // namespace baton::router
