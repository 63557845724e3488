#include "engine/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "common/log.h"

namespace baton::engine::cpu {
namespace {

constexpr int32_t kTilePositions = KvPages::kTilePositions;
// Positions after which a softmax of its own begins.
constexpr int32_t kSpanPositions = 512;
// Queries (tokens times heads of a group) that share a tile.
constexpr int32_t kTileQueries = 64;
// Items per thread below which tiles are cut into spans.
constexpr int64_t kItemsPerThread = 4;

}  // namespace

void Attention::Result::Clear(int64_t rows, int64_t width) {
  sums.Reserve(rows * width);
  std::fill_n(sums.data(), rows * width, 0.0f);
  states.assign(rows, {-std::numeric_limits<float>::infinity(), 0.0f});
}

Attention::Attention(const Kernels& kernels, const KvPages& pages,
                     int32_t num_heads, int32_t num_threads)
    : kernels_(kernels),
      pages_(pages),
      head_dim_(pages.layout().head_dim),
      stored_head_dim_(pages.layout().stored_head_dim()),
      num_kv_heads_(pages.layout().num_kv_heads),
      group_(num_heads / num_kv_heads_),
      max_tile_rows_(std::max(1, kTileQueries / group_)),
      score_factor_(static_cast<float>(1.0 / std::sqrt(head_dim_))) {
  CHECK_EQ(num_heads % num_kv_heads_, 0);
  CHECK_EQ(head_dim_ % 2, 0);
  scratch_.resize(num_threads);
  const int64_t rows = int64_t{max_tile_rows_} * group_;
  for (Scratch& s : scratch_) {
    s.queries.Reserve(rows * head_dim_);
    s.scores.Reserve(rows * kTilePositions);
    s.probabilities.Reserve(rows * kTilePositions);
    s.keys.Reserve(int64_t{kTilePositions} * stored_head_dim_);
    s.values.Reserve(stored_head_dim_ / kPanelColumns *
                     KvPages::kValuePanelStride);
  }
}

void Attention::Run(ThreadTeam& team, absl::Span<const QueryTile> tiles,
                    int32_t layer, std::optional<int32_t> window,
                    const uint16_t* queries, int64_t query_stride,
                    uint16_t* output, int64_t output_stride) {
  const Job job = {layer, window, queries, query_stride, output, output_stride};
  const int64_t heads = num_kv_heads_;
  CutPieces(job, tiles, team.num_threads());
  if (pieces_.empty()) {
    team.ParallelFor(static_cast<int64_t>(tiles.size()) * heads,
                     [&](int64_t item, int32_t thread) {
                       RunTile(job, tiles[item / heads],
                               static_cast<int32_t>(item % heads),
                               scratch_[thread]);
                     });
    return;
  }
  team.ParallelFor(pieces_.size(), [&](int64_t item, int32_t thread) {
    const Piece& piece = pieces_[item];
    const QueryTile& tile = tiles[piece.tile];
    LoadQueries(job, tile, piece.kv_head, scratch_[thread]);
    RunSpan(job, tile, piece.kv_head, piece.first, piece.end, scratch_[thread],
            piece_results_[item]);
  });
  // A few values per piece: not worth a thread.
  size_t first = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const QueryTile& tile = tiles[pieces_[i].tile];
    if (i > first) {
      Merge(tile.rows * group_, piece_results_[i], piece_results_[first]);
    }
    if (!pieces_[i].last) continue;
    WriteOutput(job, tile, pieces_[i].kv_head, piece_results_[first]);
    first = i + 1;
  }
}

void Attention::CutPieces(const Job& job, absl::Span<const QueryTile> tiles,
                          int32_t num_threads) {
  pieces_.clear();
  const int64_t items = static_cast<int64_t>(tiles.size()) * num_kv_heads_;
  if (num_threads == 1 || items >= kItemsPerThread * num_threads) return;
  bool any_cut = false;
  for (size_t t = 0; t < tiles.size(); ++t) {
    const int32_t begin = TileBegin(job, tiles[t]);
    const int32_t end = tiles[t].first_position + tiles[t].rows;
    for (int32_t head = 0; head < num_kv_heads_; ++head) {
      for (int32_t first = begin; first < end;) {
        const int32_t span_end = std::min(
            end, first / kSpanPositions * kSpanPositions + kSpanPositions);
        pieces_.push_back({static_cast<int32_t>(t), head, first, span_end,
                           /*last=*/span_end == end});
        any_cut |= span_end != end;
        first = span_end;
      }
    }
  }
  if (!any_cut) return pieces_.clear();
  if (piece_results_.size() < pieces_.size()) {
    piece_results_.resize(pieces_.size());
  }
}

int32_t Attention::TileBegin(const Job& job, const QueryTile& tile) const {
  return job.FirstVisible(tile.first_position) / kTilePositions *
         kTilePositions;
}

void Attention::LoadQueries(const Job& job, const QueryTile& tile,
                            int32_t kv_head, Scratch& scratch) const {
  const int64_t values = int64_t{group_} * head_dim_;
  for (int32_t t = 0; t < tile.rows; ++t) {
    std::memcpy(scratch.queries.data() + t * values,
                job.queries + (tile.first_row + t) * job.query_stride +
                    kv_head * values,
                sizeof(uint16_t) * values);
  }
}

void Attention::RunTile(const Job& job, const QueryTile& tile, int32_t kv_head,
                        Scratch& scratch) const {
  LoadQueries(job, tile, kv_head, scratch);
  const int32_t end = tile.first_position + tile.rows;
  int32_t first = TileBegin(job, tile);
  bool is_first = true;
  while (first < end) {
    const int32_t span_end =
        std::min(end, first / kSpanPositions * kSpanPositions + kSpanPositions);
    RunSpan(job, tile, kv_head, first, span_end, scratch,
            is_first ? scratch.total : scratch.span);
    if (!is_first) Merge(tile.rows * group_, scratch.span, scratch.total);
    is_first = false;
    first = span_end;
  }
  WriteOutput(job, tile, kv_head, scratch.total);
}

void Attention::RunSpan(const Job& job, const QueryTile& tile, int32_t kv_head,
                        int32_t first, int32_t end, Scratch& scratch,
                        Result& result) const {
  const int32_t rows = tile.rows * group_;
  result.Clear(rows, stored_head_dim_);
  for (; first < end; first += kTilePositions) {
    const int32_t tile_end = std::min(end, first + kTilePositions);
    pages_.Prefetch(job.layer, tile.blocks, kv_head, tile_end,
                    std::min(end, tile_end + kTilePositions));
    pages_.ReadTile(job.layer, tile.blocks, kv_head, first, tile_end,
                    scratch.keys.data(), scratch.values.data());
    const int32_t count =
        (tile_end - first + kPanelColumns - 1) / kPanelColumns * kPanelColumns;

    MatmulArgs scores;
    scores.a = scratch.queries.data();
    scores.a_stride = head_dim_;
    scores.rows = rows;
    scores.b = scratch.keys.data();
    scores.panel_stride = int64_t{kPanelColumns} * stored_head_dim_;
    scores.panels = count / kPanelColumns;
    scores.k_pairs = head_dim_ / 2;
    scores.c = scratch.scores.data();
    scores.c_stride = kTilePositions;
    kernels_.matmul(scores);

    for (int32_t r = 0; r < rows; ++r) {
      const int32_t position = tile.first_position + r / group_;
      const int32_t visible_begin =
          std::max(0, job.FirstVisible(position) - first);
      const int32_t visible_end = std::min(count, position + 1 - first);
      const float rescale = kernels_.softmax(
          scratch.scores.data() + r * kTilePositions, count, visible_begin,
          visible_end, score_factor_, &result.states[r],
          scratch.probabilities.data() + r * kTilePositions);
      if (rescale != 1.0f) {
        kernels_.scale(result.sums.data() + int64_t{r} * stored_head_dim_,
                       rescale, stored_head_dim_);
      }
    }

    MatmulArgs sums;
    sums.a = scratch.probabilities.data();
    sums.a_stride = kTilePositions;
    sums.rows = rows;
    sums.b = scratch.values.data();
    sums.panel_stride = KvPages::kValuePanelStride;
    sums.panels = stored_head_dim_ / kPanelColumns;
    sums.k_pairs = count / 2;
    sums.accumulate = true;
    sums.c = result.sums.data();
    sums.c_stride = stored_head_dim_;
    kernels_.matmul(sums);
  }
}

void Attention::Merge(int32_t rows, const Result& span, Result& total) const {
  for (int32_t r = 0; r < rows; ++r) {
    kernels_.merge_softmax(
        &total.states[r], total.sums.data() + int64_t{r} * stored_head_dim_,
        span.states[r], span.sums.data() + int64_t{r} * stored_head_dim_,
        stored_head_dim_);
  }
}

void Attention::WriteOutput(const Job& job, const QueryTile& tile,
                            int32_t kv_head, const Result& result) const {
  for (int32_t r = 0; r < tile.rows * group_; ++r) {
    uint16_t* const out =
        job.output + (tile.first_output_row + r / group_) * job.output_stride +
        (int64_t{kv_head} * group_ + r % group_) * head_dim_;
    kernels_.scale_round(result.sums.data() + int64_t{r} * stored_head_dim_,
                         1.0f / result.states[r].sum, head_dim_, out);
  }
}

}  // namespace baton::engine::cpu
