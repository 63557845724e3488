// Which experts the rows of a layer go through, and what becomes of their
// outputs (ModelConfig's ExpertsConfig says what a mixture computes).
//
// Same answer everywhere: what a row chooses, its shares, and the order in
// which its experts' outputs are added depend on the row alone. Where it lies
// among the rows of an expert depends on the batch, but not on when which
// thread runs: ranks that share a model have it at the same place.
//
// These functions give kernels to a stream. Arrays are the device's.
#pragma once

#include <cstdint>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/heads.h"

namespace baton::engine::cuda {

// A lane for each.
inline constexpr int32_t kMostExpertsPerToken = 32;
// Of a layer. Shared ones count in both.
inline constexpr int32_t kMostExperts = 1024;
// A lane for each.
inline constexpr int32_t kMostExpertGroups = 32;

struct ExpertChoice {
  int32_t expert = -1;  // none: the row is not there
  int32_t place = -1;   // expert_matmul.h
  float share = 0;
};

// Chooses, for each row, the experts with the largest scores, of equal ones the
// first, and sorts the rows by expert. A share is exp(logit) by the sum of
// these over all experts, or over those chosen when `normalized`, times
// `scale`. With `sigmoid` it is that of the logit, which `choice_bias` is added
// to for the choice alone, by the sum over those chosen when `normalized`.
// Shared experts, which come after those that are chosen from, all rows go
// through, each with a share of 1. Of `groups` of neighbours only those are
// chosen from, `chosen_groups` of them, whose best expert has the largest
// score, or with `sigmoid` whose best two have the largest sum; of equal ones
// the first.
struct RouteArgs {
  const float* logits = nullptr;  // [rows][stride]
  int64_t stride = 0;
  int32_t rows = 0;
  // At most kMostExperts, and kMostExpertsPerToken of them.
  int32_t experts = 0;
  int32_t per_token = 0;
  int32_t shared = 0;
  int32_t groups = 1;  // a divisor of `experts`, at most kMostExpertGroups
  int32_t chosen_groups = 1;
  bool sigmoid = false;
  const float* choice_bias = nullptr;  // [experts], or null
  bool normalized = true;
  float scale = 1.0f;
  // Rows without a position are not there; null: all are.
  const RowPlace* row_places = nullptr;

  // [rows][per_token + shared], the largest first, and then the shared ones.
  ExpertChoice* choices = nullptr;
  int32_t* place_rows = nullptr;  // [places]: whose a place is
  RowTile* tiles = nullptr;       // [num_tiles]
  ExpertTiling tiling;
  // How many experts are read: added to what is there, or, with `first`, put.
  uint32_t* reads = nullptr;
  bool first = false;
};
void RunRoute(const RouteArgs& args, StreamHandle* stream);

// Stages rows where their places are: inputs of products with a tiling that is
// staged.
struct StageRowsArgs {
  const uint16_t* from = nullptr;  // bfloat16 [rows][inputs]
  int32_t inputs = 0;              // a multiple of 64
  const int32_t* place_rows = nullptr;
  const RowTile* tiles = nullptr;
  ExpertTiling tiling;
  uint16_t* to = nullptr;  // staged, of all places
};
void RunStageRows(const StageRowsArgs& args, StreamHandle* stream);

// sum[row] = the sum, from zero on in the order of a row's choices, of each
// share times what its expert says. Written to `out`, or added to it with
// `add`: elements of `out` are summed first, then added.
struct MixArgs {
  const ExpertChoice* choices = nullptr;  // [rows][per_token]
  int32_t rows = 0;
  int32_t per_token = 0;
  const float* said = nullptr;  // [places][size]
  int32_t size = 0;
  float* out = nullptr;  // [rows][size]
  bool add = false;
};
void RunMix(const MixArgs& args, StreamHandle* stream);

}  // namespace baton::engine::cuda
