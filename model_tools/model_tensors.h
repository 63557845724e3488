// The tensors of a model directory, from its geometry: names as in Hugging
// Face's files, in the order in which a step uses them.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model_config.h"

namespace baton::model_tools {

enum class TensorRole {
  kEmbedding,       // [vocab, hidden]
  kMatrix,          // of a layer, [outputs, inputs]
  kQueryKeyMatrix,  // the same, for queries or keys
  kResidualMatrix,  // the same; its product is added to the residual stream
  kBias,
  kNorm,
  kLmHead,  // [vocab, hidden]
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kMatrix;

  int64_t num_elements() const;
};

std::vector<TensorSpec> ListTensors(const engine::ModelConfig& config);

// All weights; the embedding once when it is the output head too.
int64_t CountParameters(const engine::ModelConfig& config);

}  // namespace baton::model_tools
