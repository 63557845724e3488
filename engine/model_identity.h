// A name for the exact model that an engine has loaded, so that two workers can
// tell whether the KV of one means anything to the other.
#pragma once

#include <string>

#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine {

// 32 hexadecimal digits: XXH3-128 over every field of the config that the
// forward pass depends on, and over the name, type, shape, encoding and content
// of every tensor that the model uses. It does not depend on paths, on how the
// tensors are cut into shards, nor on files that the engine does not read.
//
// Content is hashed whole when all tensors together have at most 64 MiB;
// otherwise of each tensor larger than 64 KiB only 16 pieces of 4 KiB: the
// first, the last, and 14 evenly between; of an expert's, of which there are
// thousands, the first and the last. Training changes nearly every weight,
// so another training state differs; an edit of a few bytes by hand in a large
// model may not be seen. This is no defence against someone who wants two
// models to look the same.
//
// Reads the mapped files, and drops what it has read of matrices from this
// process's memory. Any thread.
std::string ModelIdentity(const ModelConfig& config,
                          const ModelWeights& weights);

// The same over the fields of the config alone: whether two configs make the
// same use of the same weights. Pure.
std::string ConfigIdentity(const ModelConfig& config);

}  // namespace baton::engine
