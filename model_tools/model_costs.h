// What a step of a model costs at least: operations, and bytes read from
// memory. Ratios to what a machine can do (engine/cpu/ceilings.h) say how good
// an engine is.
//
//   operations = 2 * matrix parameters of the layers * tokens
//              + 2 * hidden * vocabulary * sampled tokens
//              + 4 * q_size * layers * sum over tokens of visible positions
//
// where a product with its addition counts as two and q_size is heads *
// head_dim, or with latent attention (LatentConfig, model_config.h) heads * the
// mean of rank + rope_dim and rank; a token at position p sees p + 1 positions,
// itself included (fewer where a layer slides). Norms, RoPE, softmax and
// sampling are not counted.
//
// Of experts, a token has the parameters of those that it passes through, and a
// step reads those that any of its tokens does: if each token's are drawn from
// all alike, of n tokens count * (1 - (1 - per_token / count)^n) of a layer,
// and those that all tokens share.
//
//   bytes = bytes of the layers' matrices + those of the output head, once per
//           step (the second only where something is sampled)
//         + keys and values of all positions before the step, once per sequence
//
// Embedding rows, activations and what a step reads more than once are not
// counted. A weight takes 2 bytes as bf16; 1 as int8, with 4 per output; 1/2 as
// int4, with 4 per output and 2 per 64 inputs of it. As mxfp4 it takes 1/2,
// with 1 per 32 inputs, in experts, and 2 elsewhere.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "engine/engine.h"
#include "engine/kv_layout.h"
#include "engine/model_config.h"

namespace baton::model_tools {

enum class WeightKind { kBf16, kFp8, kInt8, kInt4, kMxfp4 };

// "bf16", "fp8", "int8", "int4", "mxfp4".
const char* WeightKindName(WeightKind kind);
// None when there is no such kind.
std::optional<WeightKind> ParseWeightKind(absl::string_view name);

// The kind of an engine's weights: what its WeightsInfo::dtype says ("int8";
// where several are said, as in "int4-bf16", the first).
WeightKind WeightKindOf(const engine::WeightsInfo& weights);

// Parameters in the layers' matrices, as far as one token passes through them,
// and in the output head.
int64_t LayerMatrixParameters(const engine::ModelConfig& config);
int64_t HeadParameters(const engine::ModelConfig& config);

// Bytes of all of the layers' matrices, of what a step of so many tokens reads
// of them, and of the head.
double LayerMatrixBytes(const engine::ModelConfig& config, WeightKind kind);
double LayerBytesRead(const engine::ModelConfig& config, WeightKind kind,
                      int64_t tokens);
double HeadBytes(const engine::ModelConfig& config, WeightKind kind);

// What a sequence does in a step.
struct SequenceStep {
  int64_t before = 0;   // positions that were computed earlier
  int64_t tokens = 1;   // new ones
  int64_t sampled = 1;  // of these, how many have logits computed
};

double SequenceOperations(const engine::ModelConfig& config,
                          const SequenceStep& step);

// Of the sequence's keys and values; the weights are not of a sequence.
double SequenceKvBytes(const engine::ModelConfig& config,
                       const engine::KvLayout& layout,
                       const SequenceStep& step);

// The geometry of KV memory with `num_blocks` blocks.
engine::KvLayout MakeKvLayout(const engine::ModelConfig& config,
                              engine::KvDtype dtype, int32_t block_size,
                              int32_t num_blocks);

}  // namespace baton::model_tools
