// The weights of a model in a GGUF file: matrices in F32, F16, BF16, Q8_0,
// Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K and MXFP4, vectors in the first
// three.
//
// "llama" files have the rows of q and k in an order of their own, which
// WeightMatrix::interleaved_head undoes. Their biases of q and k are copied
// into ours.
//
// Any thread. Errors as LoadModelWeights says, naming the file and the tensor.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model_config.h"
#include "engine/weights.h"

namespace baton::engine {

absl::StatusOr<ModelWeights> LoadGgufWeights(const std::string& path,
                                             const ModelConfig& config);

}  // namespace baton::engine
