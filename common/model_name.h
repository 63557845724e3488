// What operators call a model: the label model_name of every process's metrics,
// and what clients of a router call it unless they are told another name.
//
// Pure, any thread.
#pragma once

#include <string>

namespace baton {

// The last part of the path of a model directory or a GGUF file, without
// ".gguf": "models/stories/", "models/stories" and "models/stories.gguf" are
// all "stories".
std::string ModelName(const std::string& model);

}  // namespace baton
