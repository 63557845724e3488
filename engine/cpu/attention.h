// Attention of a step's queries over paged KV memory.
//
// Keys and values are read from KV memory only, also those of the step itself,
// in tiles of 64 positions and spans of 512 that are aligned to the sequence,
// not to the step. Within a span the softmax runs on from tile to tile; spans
// are merged in their order. A query's result is therefore bitwise the same
// however its prompt was cut, whatever else is in the step, and whether one
// thread ran all spans or several ran one each. Scores and sums are float32;
// queries and probabilities are rounded to bfloat16 as inputs of a product.
//
// That a query does not see later tokens is a probability of zero, and zero
// times a value that is not finite is NaN. A token whose value is not finite (a
// broken model) can therefore spoil earlier tokens of its own sequence in the
// same 64 positions, where another cut of the prompt would not.
//
// Run is called by the engine's thread. One object serves all layers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/kv_pages.h"
#include "engine/cpu/thread_team.h"
#include "engine/kv_layout.h"

namespace baton::engine::cpu {

// Neighbouring tokens of one sequence whose queries are worked on together.
struct QueryTile {
  int32_t first_row = 0;         // row of the queries
  int32_t first_output_row = 0;  // row of the results
  int32_t rows = 0;              // at most Attention::MaxTileRows()
  int32_t first_position = 0;    // of the first token
  absl::Span<const BlockId> blocks;
};

class Attention final {
 public:
  // `pages` must outlive the object. Products of queries and keys are
  // multiplied by `score_factor`. REQUIRES: num_heads is a multiple of the KV
  // heads, head_dim is even.
  Attention(const Kernels& kernels, const KvPages& pages, int32_t num_heads,
            float score_factor, int32_t num_threads);

  int32_t MaxTileRows() const { return max_tile_rows_; }

  // Results of all tiles. `queries` have num_heads * head_dim values per row,
  // results num_heads * value_dim() (KvLayout), strides in elements; those of
  // neighbouring heads lie `output_head_stride` apart. With a window, a query
  // sees at most that many positions, its own included. `sinks` (ModelConfig)
  // are one logit per head, or none.
  void Run(ThreadTeam& team, absl::Span<const QueryTile> tiles, int32_t layer,
           std::optional<int32_t> window, absl::Span<const float> sinks,
           const uint16_t* queries, int64_t query_stride, uint16_t* output,
           int64_t output_stride, int64_t output_head_stride);

 private:
  // What one layer's run works on.
  struct LayerRun {
    int32_t layer = 0;
    std::optional<int32_t> window;
    absl::Span<const float> sinks;
    const uint16_t* queries = nullptr;
    int64_t query_stride = 0;
    uint16_t* output = nullptr;
    int64_t output_stride = 0;
    int64_t output_head_stride = 0;

    int32_t FirstVisible(int32_t position) const {
      return window && position >= *window ? position - *window + 1 : 0;
    }
  };
  // The weighted sums of values so far, and what they are divided by, for the
  // rows of one or several KV heads.
  struct Result {
    AlignedBuffer<float> sums;  // [heads][rows][stored_value_dim()]
    std::vector<SoftmaxState> states;

    void Clear(int64_t rows, int64_t width);
  };
  // What one thread works in.
  struct Scratch {
    AlignedBuffer<uint16_t> queries;        // [heads][rows][head_dim]
    AlignedBuffer<float> scores;            // [rows][64]
    AlignedBuffer<uint16_t> probabilities;  // [rows][64]
    // Of one head: 4 panels of keys, and a panel of values per 16 elements.
    AlignedBuffer<uint16_t> keys;
    AlignedBuffer<uint16_t> values;
    Result span;
    Result total;
  };
  // Some KV heads of a tile: neighbours, one unless the tile is one token. And
  // which of the query heads that share each of them: all, unless one key is
  // shared out.
  struct Heads {
    int32_t first = 0;
    int32_t count = 1;
    int32_t first_query = 0;
    int32_t queries = 1;
  };
  // One span of one tile, when the spans of a tile are run apart.
  struct Piece {
    int32_t tile = 0;
    Heads heads;
    int32_t first = 0;
    int32_t end = 0;
    bool last = false;  // of its tile and heads
  };

  // Of the given query heads.
  static int32_t Rows(const QueryTile& tile, Heads heads) {
    return heads.count * tile.rows * heads.queries;
  }
  // The first of them.
  int32_t FirstQueryHead(Heads heads) const {
    return heads.first * group_ + heads.first_query;
  }
  // The first position that a tile's queries see, down to whole tiles.
  int32_t TileBegin(const LayerRun& run, const QueryTile& tile) const;
  void LoadQueries(const LayerRun& run, const QueryTile& tile, Heads heads,
                   Scratch& scratch) const;
  // All spans of a tile, and the output.
  void RunTile(const LayerRun& run, const QueryTile& tile, Heads heads,
               Scratch& scratch) const;
  // Positions [first, end), which lie in one span, into `result`.
  void RunSpan(const LayerRun& run, const QueryTile& tile, Heads heads,
               int32_t first, int32_t end, Scratch& scratch,
               Result& result) const;
  // The positions [first, end) of one tile of keys and values: read into
  // scratch for one head; or in place for all heads of one token, page by page.
  void RunCopied(const LayerRun& run, const QueryTile& tile, Heads heads,
                 int32_t first, int32_t end, Scratch& scratch,
                 Result& result) const;
  void RunInPlace(const LayerRun& run, const QueryTile& tile, Heads heads,
                  int32_t first, int32_t end, Scratch& scratch,
                  Result& result) const;
  // From the scores of [first, first + count) to probabilities.
  void Softmax(const LayerRun& run, const QueryTile& tile, Heads heads,
               int32_t first, int32_t count, Scratch& scratch,
               Result& result) const;
  void Merge(int32_t rows, const Result& span, Result& total) const;
  void WriteOutput(const LayerRun& run, const QueryTile& tile, Heads heads,
                   const Result& result) const;
  // KV heads that an item takes together: all, when each item is one token and
  // there are items enough, because a page holds them one after another.
  int32_t HeadsPerItem(absl::Span<const QueryTile> tiles,
                       int32_t num_threads) const;
  // Into how many parts the query heads of a KV head are cut, where the spans
  // of all tiles would be `pieces`. Others' keys and values are read at the
  // speed of memory by few; those of one head for many queries are not.
  int32_t QueryParts(int64_t pieces, int32_t num_threads) const;
  // Cuts tiles into pieces when there are too few items to keep the team busy;
  // none otherwise.
  void CutPieces(const LayerRun& run, absl::Span<const QueryTile> tiles,
                 int32_t heads_per_item, int32_t num_threads);

  const Kernels& kernels_;
  const KvPages& pages_;
  const int32_t head_dim_;
  const int32_t stored_head_dim_;
  const int32_t value_dim_;
  const int32_t stored_value_dim_;
  const int32_t num_kv_heads_;
  const int32_t group_;  // query heads per KV head
  const int32_t max_tile_rows_;
  const float score_factor_;
  std::vector<Scratch> scratch_;
  std::vector<Piece> pieces_;
  std::vector<Result> piece_results_;
};

}  // namespace baton::engine::cpu
