// Where a config.json says what a model of texts is: the router and the engine
// must agree on it.
//
// Pure, any thread.
#pragma once

#include "common/json.h"

namespace baton {

// `root`, the content of a config.json, of models of texts as it is. Of models
// that read images as well (Gemma3ForConditionalGeneration) what it says of
// texts, `text_config`, named as the model of texts that it is, with the tokens
// and the quantization that are said of the whole. Gemma's files leave out what
// is transformers' default (Gemma3TextConfig), which is filled in.
nlohmann::json TextModelJson(nlohmann::json root);

}  // namespace baton
