// The tensors of a model directory, from its geometry: names as in Hugging
// Face's files, in the order in which a step uses them.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/dtype.h"
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
  // Of experts in MXFP4 (engine/expert_rows.h).
  kMxfp4Numbers,    // [experts, outputs, inputs / 32, 16]
  kMxfp4Exponents,  // [experts, outputs, inputs / 32]
};

struct TensorSpec {
  std::string name;
  std::vector<int64_t> shape;
  TensorRole role = TensorRole::kMatrix;

  int64_t num_elements() const;
  // U8 of MXFP4, else `dtype`.
  engine::DType TypeIn(engine::DType dtype) const;
};

// `mxfp4`: gpt-oss's experts are so.
// REQUIRES: gpt-oss then, whose sizes are multiples of 32.
std::vector<TensorSpec> ListTensors(const engine::ModelConfig& config,
                                    bool mxfp4 = false);

// All weights; the embedding once when it is the output head too.
int64_t CountParameters(const engine::ModelConfig& config);

}  // namespace baton::model_tools
