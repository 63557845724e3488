// What models with latent attention (LatentConfig, model_config.h) say of it:
// DeepSeek-V2 and V3 and what is built as they are. Any thread.
#pragma once

#include "absl/status/status.h"
#include "engine/json_fields.h"
#include "engine/model_config.h"

namespace baton::engine {

// Of the norms of what keys and values, and queries, are made from, whatever
// epsilon the other norms have.
inline constexpr double kLatentNormEps = 1e-6;

bool IsLatent(Architecture architecture);

// Sets num_heads, latent, and what follows from it: num_kv_heads, head_dim and
// rotary_dim. Errors are the fields'.
void ReadLatent(JsonFields& fields, ModelConfig& config);

// Checks what attention's rank and lengths have to be; the error does not say
// where they come from.
absl::Status CheckLatent(const ModelConfig& config);

// Sets head_dim, num_kv_heads and rotary_dim.
// REQUIRES: latent is set.
void SetLatentHeads(ModelConfig& config);

// Sets query_scalar, by the length of queries and by what a context that was
// stretched by YaRN makes of scores: the square of YarnMagnitude, with
// `mscale_all_dim` as its weight.
// REQUIRES: latent and rope_scaling are set.
void SetLatentScores(ModelConfig& config);

}  // namespace baton::engine
