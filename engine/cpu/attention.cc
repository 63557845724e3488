#include "engine/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/log.h"

namespace baton::engine::cpu {
namespace {

// Positions whose keys and values are packed together.
constexpr int32_t kTilePositions = 64;
// Queries (tokens times heads of a group) that share a packed tile.
constexpr int32_t kTileQueries = 64;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kValuePanelStride =
    int64_t{kTilePositions} / 2 * kPanelPairElements;

int32_t RoundUp(int32_t n, int32_t unit) {
  return (n + unit - 1) / unit * unit;
}

}  // namespace

Attention::Attention(const Kernels& kernels, const KvLayout& layout,
                     int32_t num_heads, int32_t num_threads)
    : kernels_(kernels),
      layout_(layout),
      group_(num_heads / layout.num_kv_heads),
      max_tile_rows_(std::max(1, kTileQueries / group_)),
      padded_head_dim_(RoundUp(layout.head_dim, kPanelColumns)),
      score_factor_(static_cast<float>(1.0 / std::sqrt(layout.head_dim))),
      row_bytes_(layout.head_dim * layout.element_bytes()),
      value_offset_(layout.block_size * row_bytes_),
      zero_row_(layout.head_dim) {
  CHECK_EQ(num_heads % layout.num_kv_heads, 0);
  CHECK_EQ(layout.head_dim % 2, 0);
  scratch_.resize(num_threads);
  const int64_t rows = int64_t{max_tile_rows_} * group_;
  for (Scratch& s : scratch_) {
    s.queries.Reserve(rows * layout.head_dim);
    s.scores.Reserve(rows * kTilePositions);
    s.probabilities.Reserve(rows * kTilePositions);
    s.sums.Reserve(rows * padded_head_dim_);
    s.keys.Reserve(int64_t{kTilePositions} * layout.head_dim);
    s.values.Reserve(padded_head_dim_ / kPanelColumns * kValuePanelStride);
    s.states.resize(rows);
  }
}

void Attention::Run(ThreadTeam& team, absl::Span<const QueryTile> tiles,
                    int32_t layer, const std::byte* kv_memory,
                    std::optional<int32_t> window, const uint16_t* queries,
                    int64_t query_stride, uint16_t* output,
                    int64_t output_stride) {
  const std::byte* const pages = kv_memory + layout_.PageOffset(layer, 0);
  const int64_t heads = layout_.num_kv_heads;
  team.ParallelFor(static_cast<int64_t>(tiles.size()) * heads,
                   [&](int64_t item, int32_t thread) {
                     RunTile(tiles[item / heads], pages,
                             static_cast<int32_t>(item % heads), window,
                             queries, query_stride, output, output_stride,
                             scratch_[thread]);
                   });
}

template <typename Visit>
void Attention::ForRuns(const QueryTile& tile, const std::byte* pages,
                        int32_t kv_head, int32_t first, int32_t end,
                        Visit visit) const {
  while (first < end) {
    const int32_t block = first / layout_.block_size;
    const int32_t slot = first % layout_.block_size;
    const int32_t count = std::min(end - first, layout_.block_size - slot);
    visit(pages + tile.blocks[block] * layout_.page_bytes() +
              kv_head * layout_.head_bytes() + slot * row_bytes_,
          count);
    first += count;
  }
}

void Attention::Prefetch(const QueryTile& tile, const std::byte* pages,
                         int32_t kv_head, int32_t first, int32_t end) const {
  ForRuns(tile, pages, kv_head, first, end,
          [&](const std::byte* keys, int32_t count) {
            for (int64_t i = 0; i < count * row_bytes_; i += kCacheLine) {
              __builtin_prefetch(keys + i, /*rw=*/0, /*locality=*/2);
              __builtin_prefetch(keys + value_offset_ + i, /*rw=*/0,
                                 /*locality=*/2);
            }
          });
}

void Attention::PackTile(const QueryTile& tile, const std::byte* pages,
                         int32_t kv_head, int32_t first, int32_t end,
                         Scratch& scratch) const {
  const uint16_t* keys[kTilePositions];
  const uint16_t* values[kTilePositions];
  int32_t size = 0;
  ForRuns(tile, pages, kv_head, first, end,
          [&](const std::byte* key, int32_t count) {
            for (int32_t i = 0; i < count; ++i, ++size, key += row_bytes_) {
              keys[size] = reinterpret_cast<const uint16_t*>(key);
              values[size] =
                  reinterpret_cast<const uint16_t*>(key + value_offset_);
            }
          });
  for (; size % kPanelColumns != 0; ++size) {
    keys[size] = values[size] = zero_row_.data();
  }
  for (int32_t i = 0; i < size; i += kPanelColumns) {
    kernels_.pack_keys(keys + i, layout_.head_dim,
                       scratch.keys.data() + int64_t{i} * layout_.head_dim);
  }
  kernels_.pack_values(values, size, layout_.head_dim, scratch.values.data(),
                       kValuePanelStride);
}

void Attention::RunTile(const QueryTile& tile, const std::byte* pages,
                        int32_t kv_head, std::optional<int32_t> window,
                        const uint16_t* queries, int64_t query_stride,
                        uint16_t* output, int64_t output_stride,
                        Scratch& scratch) const {
  const int32_t head_dim = layout_.head_dim;
  const int32_t rows = tile.rows * group_;
  for (int32_t t = 0; t < tile.rows; ++t) {
    std::memcpy(scratch.queries.data() + int64_t{t} * group_ * head_dim,
                queries + (tile.first_row + t) * query_stride +
                    int64_t{kv_head} * group_ * head_dim,
                sizeof(uint16_t) * group_ * head_dim);
  }
  std::fill_n(scratch.sums.data(), int64_t{rows} * padded_head_dim_, 0.0f);
  std::fill_n(scratch.states.data(), rows,
              SoftmaxState{-std::numeric_limits<float>::infinity(), 0.0f});

  const auto first_visible = [&](int32_t position) {
    return window ? std::max(0, position - *window + 1) : 0;
  };
  const int32_t end = tile.first_position + tile.rows;
  int32_t first =
      first_visible(tile.first_position) / kTilePositions * kTilePositions;
  for (; first < end; first += kTilePositions) {
    const int32_t tile_end = std::min(end, first + kTilePositions);
    Prefetch(tile, pages, kv_head, tile_end,
             std::min(end, tile_end + kTilePositions));
    PackTile(tile, pages, kv_head, first, tile_end, scratch);
    const int32_t count = RoundUp(tile_end - first, kPanelColumns);

    MatmulArgs scores;
    scores.a = scratch.queries.data();
    scores.a_stride = head_dim;
    scores.rows = rows;
    scores.b = scratch.keys.data();
    scores.panel_stride = int64_t{kPanelColumns} * head_dim;
    scores.panels = count / kPanelColumns;
    scores.k_pairs = head_dim / 2;
    scores.c = scratch.scores.data();
    scores.c_stride = kTilePositions;
    kernels_.matmul(scores);

    for (int32_t r = 0; r < rows; ++r) {
      const int32_t position = tile.first_position + r / group_;
      const int32_t visible_begin =
          std::max(0, first_visible(position) - first);
      const int32_t visible_end = std::min(count, position + 1 - first);
      const float rescale = kernels_.softmax(
          scratch.scores.data() + r * kTilePositions, count, visible_begin,
          visible_end, score_factor_, &scratch.states[r],
          scratch.probabilities.data() + r * kTilePositions);
      if (rescale != 1.0f) {
        kernels_.scale(scratch.sums.data() + int64_t{r} * padded_head_dim_,
                       rescale, padded_head_dim_);
      }
    }

    MatmulArgs sums;
    sums.a = scratch.probabilities.data();
    sums.a_stride = kTilePositions;
    sums.rows = rows;
    sums.b = scratch.values.data();
    sums.panel_stride = kValuePanelStride;
    sums.panels = padded_head_dim_ / kPanelColumns;
    sums.k_pairs = count / 2;
    sums.accumulate = true;
    sums.c = scratch.sums.data();
    sums.c_stride = padded_head_dim_;
    kernels_.matmul(sums);
  }

  for (int32_t r = 0; r < rows; ++r) {
    uint16_t* const out = output +
                          (tile.first_output_row + r / group_) * output_stride +
                          (int64_t{kv_head} * group_ + r % group_) * head_dim;
    kernels_.scale_round(scratch.sums.data() + int64_t{r} * padded_head_dim_,
                         1.0f / scratch.states[r].sum, head_dim, out);
  }
}

}  // namespace baton::engine::cpu
