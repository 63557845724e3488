// From a step plan to the arrays that the kernels read: what runs in one pass
// of the model, row by row, and which blocks attention is cut into. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/cuda/attention.h"
#include "engine/cuda/lora.h"
#include "engine/cuda/row_kernels.h"
#include "scheduling/step_plan.h"

namespace baton::engine::cuda {

// A part of a planned sequence's new tokens.
struct SequencePart {
  int32_t sequence = 0;  // index in the plan
  int32_t first = 0;     // of its tokens
  int32_t count = 0;
};
using Pass = std::vector<SequencePart>;

// Cuts a plan into passes of at most `max_rows` tokens, in the order of the
// plan. How a prompt is cut changes no answer, so that a pass may be as large
// as there is memory for, whatever the plan.
// REQUIRES: max_rows > 0; sequences are not empty.
std::vector<Pass> CutIntoPasses(const scheduling::StepPlan& plan,
                                int32_t max_rows);

// One row of logits: whose, and what for.
struct LogitRow {
  int32_t row = 0;
  int32_t sequence = 0;  // of the plan
  int32_t token = 0;     // of the sequence's new tokens
};

// Attention over a set of rows: tiles that run all their spans, and single
// tokens, or in decode passes a few of one sequence, whose spans run apart.
struct TileSet {
  std::vector<QueryTile> whole;
  std::vector<QueryTile> single;
  int32_t max_spans = 0;                // of the single ones
  int32_t span_rows = 1;                // tokens of these, at most
  int32_t tile_queries = kTileQueries;  // of the whole ones, at most
};

// Rows in tiles of one adapter each (lora.h).
struct LoraGroups {
  std::vector<LoraTile> tiles;
  std::vector<int32_t> list;
};

// Of rows 0, 1, ... that have these adapters, those that have one.
LoraGroups GroupByAdapter(absl::Span<const int32_t> adapters);

struct StepLayout {
  // A row per new token.
  std::vector<TokenId> tokens;
  std::vector<RowPlace> places;
  std::vector<BlockId> block_tables;
  std::vector<LogitRow> logit_rows;  // of rising rows
  // By layers whose attention slides and layers where it does not.
  TileSet full;
  TileSet sliding;
  // For the last layer, which runs on for logit_rows alone: their attention,
  // with results in the order of logit_rows.
  TileSet last;
  int32_t end_position = 0;  // behind the last position of all
  // The rows that have adapters, and of logit_rows, by their number there.
  LoraGroups adapted;
  LoraGroups adapted_last;
};

struct LayoutOptions {
  int32_t block_size = 16;
  int32_t group = 1;  // query heads per KV head
  // Tiles are those of latent_attention.h.
  bool latent = false;
  int32_t window = 0;  // of sliding layers; 0: none slides
  bool last_layer_slides = false;
  // Single tokens whose spans may run apart: (tokens) * (greatest number of
  // spans) is at most this.
  int64_t max_span_pieces = 0;
  // Whether passes with kGroupAttentionRows tokens of prompts and more are cut
  // for groups of warps (kGroupTileQueries). A block of these is by itself on
  // its multiprocessor, and of fewer queries than it takes the others are idle.
  bool group_attention = false;
};
inline constexpr int32_t kGroupAttentionRows = 65;

// REQUIRES: a well-formed plan (engine.h) and parts of it.
StepLayout LayOut(const scheduling::StepPlan& plan, const Pass& pass,
                  const LayoutOptions& options);

// Whether a token is sampled after each row of a pass, and none is scored: what
// there are graphs for. A sequence has one, and its guesses.
bool IsDecodePass(const scheduling::StepPlan& plan, const Pass& pass);
// Whether any sequence has more than one row of it.
bool HasSeveralRows(const Pass& pass);

}  // namespace baton::engine::cuda
