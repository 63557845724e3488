// Attention of a step's queries over paged KV memory.
//
// Keys and values are read from KV memory only, also those of the step itself,
// and in tiles of 64 positions that are aligned to the sequence, not to the
// step: a query's result is bitwise the same however its prompt was cut and
// whatever else is in the step. Scores and sums are float32; queries and
// probabilities are rounded to bfloat16 as inputs of a product.
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
  // REQUIRES: num_heads is a multiple of layout.num_kv_heads, head_dim is even.
  Attention(const Kernels& kernels, const KvLayout& layout, int32_t num_heads,
            int32_t num_threads);

  int32_t MaxTileRows() const { return max_tile_rows_; }

  // Results of all tiles. `queries` and `output` have num_heads * head_dim
  // values per row, strides in elements. `kv_memory` is the arena of `layout`.
  // With a window, a query sees at most that many positions, its own included.
  void Run(ThreadTeam& team, absl::Span<const QueryTile> tiles, int32_t layer,
           const std::byte* kv_memory, std::optional<int32_t> window,
           const uint16_t* queries, int64_t query_stride, uint16_t* output,
           int64_t output_stride);

 private:
  // What one thread works in.
  struct Scratch {
    AlignedBuffer<uint16_t> queries;        // [rows][head_dim]
    AlignedBuffer<float> scores;            // [rows][64]
    AlignedBuffer<uint16_t> probabilities;  // [rows][64]
    AlignedBuffer<float> sums;              // [rows][head_dim padded]
    AlignedBuffer<uint16_t> keys;           // 4 panels
    AlignedBuffer<uint16_t> values;         // a panel per 16 of head_dim
    std::vector<SoftmaxState> states;
  };

  void RunTile(const QueryTile& tile, const std::byte* pages, int32_t kv_head,
               std::optional<int32_t> window, const uint16_t* queries,
               int64_t query_stride, uint16_t* output, int64_t output_stride,
               Scratch& scratch) const;
  // Calls visit(keys, count) for each run of positions of [first, end) that
  // lies in one block: `count` keys of row_bytes_ each, their values
  // value_offset_ further.
  template <typename Visit>
  void ForRuns(const QueryTile& tile, const std::byte* pages, int32_t kv_head,
               int32_t first, int32_t end, Visit visit) const;
  // Asks for the keys and values of the positions [first, end) to be brought
  // near: pages lie far apart, so the CPU does not guess where to read next.
  void Prefetch(const QueryTile& tile, const std::byte* pages, int32_t kv_head,
                int32_t first, int32_t end) const;
  // Packs the keys and values of the positions [first, end) of one tile; what
  // is missing to whole panels and pairs is zero.
  void PackTile(const QueryTile& tile, const std::byte* pages, int32_t kv_head,
                int32_t first, int32_t end, Scratch& scratch) const;

  const Kernels& kernels_;
  const KvLayout layout_;
  const int32_t group_;  // query heads per KV head
  const int32_t max_tile_rows_;
  const int32_t padded_head_dim_;
  const float score_factor_;
  const int64_t row_bytes_;     // of a key or a value
  const int64_t value_offset_;  // from a key to its value
  const std::vector<uint16_t> zero_row_;
  std::vector<Scratch> scratch_;
};

}  // namespace baton::engine::cpu
