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
// Items per thread below which heads are run apart, and tiles cut into spans.
constexpr int64_t kItemsPerThread = 4;
// Query heads that each part of those of one KV head has at least: keys that
// are values, too, are turned for each part.
constexpr int32_t kLeastQueryHeads = 8;

// To whole panels of keys.
int32_t RoundUp(int32_t positions) {
  return (positions + kPanelColumns - 1) / kPanelColumns * kPanelColumns;
}

}  // namespace

void Attention::Result::Clear(int64_t rows, int64_t width) {
  sums.Reserve(rows * width);
  std::fill_n(sums.data(), rows * width, 0.0f);
  states.assign(rows, {-std::numeric_limits<float>::infinity(), 0.0f});
}

Attention::Attention(const Kernels& kernels, const KvPages& pages,
                     int32_t num_heads, float score_factor, int32_t num_threads)
    : kernels_(kernels),
      pages_(pages),
      head_dim_(pages.layout().head_dim),
      stored_head_dim_(pages.layout().stored_head_dim()),
      value_dim_(pages.layout().value_dim()),
      stored_value_dim_(pages.layout().stored_value_dim()),
      num_kv_heads_(pages.layout().num_kv_heads),
      group_(num_heads / num_kv_heads_),
      max_tile_rows_(std::max(1, kTileQueries / group_)),
      score_factor_(score_factor) {
  CHECK_EQ(num_heads % num_kv_heads_, 0);
  CHECK_EQ(head_dim_ % 2, 0);
  scratch_.resize(num_threads);
  // Of a tile for one head, or of one token for all heads.
  const int64_t rows =
      int64_t{std::max(max_tile_rows_, num_kv_heads_)} * group_;
  for (Scratch& s : scratch_) {
    s.queries.Reserve(rows * head_dim_);
    s.scores.Reserve(rows * kTilePositions);
    s.probabilities.Reserve(rows * kTilePositions);
    s.keys.Reserve(pages.TileElements());
    s.values.Reserve(pages.TileElements());
  }
}

void Attention::Run(ThreadTeam& team, absl::Span<const QueryTile> tiles,
                    int32_t layer, std::optional<int32_t> window,
                    absl::Span<const float> sinks, const uint16_t* queries,
                    int64_t query_stride, uint16_t* output,
                    int64_t output_stride, int64_t output_head_stride) {
  const LayerRun run = {
      layer,        window, sinks,         queries,
      query_stride, output, output_stride, output_head_stride};
  const int32_t per_item = HeadsPerItem(tiles, team.num_threads());
  const int64_t items_per_tile = (num_kv_heads_ + per_item - 1) / per_item;
  CutPieces(run, tiles, per_item, team.num_threads());
  if (pieces_.empty()) {
    team.ParallelFor(
        static_cast<int64_t>(tiles.size()) * items_per_tile,
        [&](int64_t item, int32_t thread) {
          const int32_t first =
              static_cast<int32_t>(item % items_per_tile) * per_item;
          RunTile(run, tiles[item / items_per_tile],
                  {first, std::min(per_item, num_kv_heads_ - first),
                   /*first_query=*/0, group_},
                  scratch_[thread]);
        });
    return;
  }
  team.ParallelFor(pieces_.size(), [&](int64_t item, int32_t thread) {
    const Piece& piece = pieces_[item];
    const QueryTile& tile = tiles[piece.tile];
    LoadQueries(run, tile, piece.heads, scratch_[thread]);
    RunSpan(run, tile, piece.heads, piece.first, piece.end, scratch_[thread],
            piece_results_[item]);
  });
  // A few values per piece: not worth a thread.
  size_t first = 0;
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const QueryTile& tile = tiles[pieces_[i].tile];
    if (i > first) {
      Merge(Rows(tile, pieces_[i].heads), piece_results_[i],
            piece_results_[first]);
    }
    if (!pieces_[i].last) continue;
    WriteOutput(run, tile, pieces_[i].heads, piece_results_[first]);
    first = i + 1;
  }
}

int32_t Attention::HeadsPerItem(absl::Span<const QueryTile> tiles,
                                int32_t num_threads) const {
  // In scratch there is room for one head.
  if (pages_.layout().dtype != KvDtype::kBf16 ||
      pages_.layout().shares_values()) {
    return 1;
  }
  const bool single =
      std::all_of(tiles.begin(), tiles.end(),
                  [](const QueryTile& tile) { return tile.rows == 1; });
  const int64_t wanted = num_threads == 1 ? 1 : kItemsPerThread * num_threads;
  return single && static_cast<int64_t>(tiles.size()) >= wanted ? num_kv_heads_
                                                                : 1;
}

int32_t Attention::QueryParts(int64_t pieces, int32_t num_threads) const {
  if (!pages_.layout().shares_values()) return 1;
  const int64_t wanted = (kItemsPerThread * num_threads + pieces - 1) / pieces;
  const int64_t most = std::max(1, group_ / kLeastQueryHeads);
  return static_cast<int32_t>(std::min(wanted, most));
}

void Attention::CutPieces(const LayerRun& run,
                          absl::Span<const QueryTile> tiles,
                          int32_t heads_per_item, int32_t num_threads) {
  pieces_.clear();
  const int64_t items = static_cast<int64_t>(tiles.size()) * num_kv_heads_;
  if (items == 0 || num_threads == 1 || heads_per_item > 1 ||
      items >= kItemsPerThread * num_threads) {
    return;
  }
  int64_t spans = 0;
  for (const QueryTile& tile : tiles) {
    spans += (tile.first_position + tile.rows - 1) / kSpanPositions -
             TileBegin(run, tile) / kSpanPositions + 1;
  }
  const int32_t parts = QueryParts(spans * num_kv_heads_, num_threads);
  if (parts == 1 && spans == static_cast<int64_t>(tiles.size())) return;
  for (size_t t = 0; t < tiles.size(); ++t) {
    const int32_t begin = TileBegin(run, tiles[t]);
    const int32_t end = tiles[t].first_position + tiles[t].rows;
    for (int32_t i = 0; i < num_kv_heads_ * parts; ++i) {
      const int32_t part = i % parts;
      const int32_t first_query = part * group_ / parts;
      const Heads heads = {i / parts, 1, first_query,
                           (part + 1) * group_ / parts - first_query};
      for (int32_t first = begin; first < end;) {
        const int32_t span_end = std::min(
            end, first / kSpanPositions * kSpanPositions + kSpanPositions);
        pieces_.push_back({static_cast<int32_t>(t), heads, first, span_end,
                           /*last=*/span_end == end});
        first = span_end;
      }
    }
  }
  if (piece_results_.size() < pieces_.size()) {
    piece_results_.resize(pieces_.size());
  }
}

int32_t Attention::TileBegin(const LayerRun& run, const QueryTile& tile) const {
  return run.FirstVisible(tile.first_position) / kTilePositions *
         kTilePositions;
}

void Attention::LoadQueries(const LayerRun& run, const QueryTile& tile,
                            Heads heads, Scratch& scratch) const {
  // The query heads of neighbouring KV heads lie one after another.
  const int64_t values = int64_t{heads.count} * heads.queries * head_dim_;
  for (int32_t t = 0; t < tile.rows; ++t) {
    std::memcpy(scratch.queries.data() + t * values,
                run.queries + (tile.first_row + t) * run.query_stride +
                    int64_t{FirstQueryHead(heads)} * head_dim_,
                sizeof(uint16_t) * values);
  }
}

void Attention::RunTile(const LayerRun& run, const QueryTile& tile, Heads heads,
                        Scratch& scratch) const {
  LoadQueries(run, tile, heads, scratch);
  const int32_t end = tile.first_position + tile.rows;
  int32_t first = TileBegin(run, tile);
  bool is_first = true;
  while (first < end) {
    const int32_t span_end =
        std::min(end, first / kSpanPositions * kSpanPositions + kSpanPositions);
    RunSpan(run, tile, heads, first, span_end, scratch,
            is_first ? scratch.total : scratch.span);
    if (!is_first) Merge(Rows(tile, heads), scratch.span, scratch.total);
    is_first = false;
    first = span_end;
  }
  WriteOutput(run, tile, heads, scratch.total);
}

void Attention::RunSpan(const LayerRun& run, const QueryTile& tile, Heads heads,
                        int32_t first, int32_t end, Scratch& scratch,
                        Result& result) const {
  result.Clear(Rows(tile, heads), stored_value_dim_);
  const bool in_place = tile.rows == 1 &&
                        pages_.layout().dtype == KvDtype::kBf16 &&
                        !pages_.layout().shares_values();
  CHECK(in_place || heads.count == 1);  // scratch holds keys of one head
  for (; first < end; first += kTilePositions) {
    const int32_t tile_end = std::min(end, first + kTilePositions);
    if (in_place) {
      RunInPlace(run, tile, heads, first, tile_end, scratch, result);
    } else {
      RunCopied(run, tile, heads, first, tile_end, scratch, result);
    }
  }
}

void Attention::RunCopied(const LayerRun& run, const QueryTile& tile,
                          Heads heads, int32_t first, int32_t end,
                          Scratch& scratch, Result& result) const {
  const int32_t rows = Rows(tile, heads);
  const int32_t count = RoundUp(end - first);
  pages_.Prefetch(
      run.layer, tile.blocks, heads.first, end,
      std::min(tile.first_position + tile.rows, end + kTilePositions));
  pages_.ReadTile(run.layer, tile.blocks, heads.first, first, end,
                  scratch.keys.data(), scratch.values.data());

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

  Softmax(run, tile, heads, first, count, scratch, result);

  MatmulArgs sums;
  sums.a = scratch.probabilities.data();
  sums.a_stride = kTilePositions;
  sums.rows = rows;
  sums.b = scratch.values.data();
  sums.panel_stride = KvPages::kValuePanelStride;
  sums.panels = stored_value_dim_ / kPanelColumns;
  sums.k_pairs = count / 2;
  sums.accumulate = true;
  sums.c = result.sums.data();
  sums.c_stride = stored_value_dim_;
  kernels_.matmul(sums);
}

// Few queries per key: what counts is how fast keys and values come from
// memory. Pages are read from begin to end, and what comes next is asked for
// early: the CPU by itself sees no further than the end of a small page.
void Attention::RunInPlace(const LayerRun& run, const QueryTile& tile,
                           Heads heads, int32_t first, int32_t end,
                           Scratch& scratch, Result& result) const {
  const int32_t count = RoundUp(end - first);
  const auto for_slots = [&](auto body) {
    for (int32_t at = 0; at < count; at += kPanelColumns) {
      for (int32_t i = 0; i < heads.count; ++i) {
        body(at, i * group_,
             pages_.At(run.layer, tile.blocks, heads.first + i, first + at));
      }
    }
  };
  MatmulArgs scores;
  scores.a_stride = head_dim_;
  scores.rows = group_;
  scores.panels = 1;
  scores.k_pairs = head_dim_ / 2;
  scores.c_stride = kTilePositions;
  for_slots([&](int32_t at, int32_t row, const KvPages::Slots& slots) {
    pages_.PrefetchBehind(slots);
    scores.a = scratch.queries.data() + int64_t{row} * head_dim_;
    scores.b = slots.keys;
    scores.c = scratch.scores.data() + int64_t{row} * kTilePositions + at;
    kernels_.matmul(scores);
  });

  Softmax(run, tile, heads, first, count, scratch, result);

  MatmulArgs sums;
  sums.a_stride = kTilePositions;
  sums.rows = group_;
  sums.panels = stored_value_dim_ / kPanelColumns;
  sums.k_pairs = kPanelColumns / 2;
  sums.accumulate = true;
  sums.c_stride = stored_value_dim_;
  for_slots([&](int32_t at, int32_t row, const KvPages::Slots& slots) {
    sums.a = scratch.probabilities.data() + int64_t{row} * kTilePositions + at;
    sums.c = result.sums.data() + int64_t{row} * stored_value_dim_;
    sums.b = slots.values;
    sums.panel_stride = slots.value_panel_stride;
    if (first + at + kPanelColumns > end) {
      // What lies beyond the end must be zero.
      pages_.ReadTile(run.layer, tile.blocks, heads.first + row / group_,
                      first + at, end, scratch.keys.data(),
                      scratch.values.data());
      sums.b = scratch.values.data();
      sums.panel_stride = KvPages::kValuePanelStride;
    }
    kernels_.matmul(sums);
  });
}

void Attention::Softmax(const LayerRun& run, const QueryTile& tile, Heads heads,
                        int32_t first, int32_t count, Scratch& scratch,
                        Result& result) const {
  for (int32_t r = 0; r < Rows(tile, heads); ++r) {
    // One token has all rows of its heads.
    const int32_t position =
        tile.first_position + (tile.rows == 1 ? 0 : r / heads.queries);
    const int32_t visible_begin =
        std::max(0, run.FirstVisible(position) - first);
    const int32_t visible_end = std::min(count, position + 1 - first);
    const float rescale = kernels_.softmax(
        scratch.scores.data() + int64_t{r} * kTilePositions, count,
        visible_begin, visible_end, score_factor_, &result.states[r],
        scratch.probabilities.data() + int64_t{r} * kTilePositions);
    if (rescale != 1.0f) {
      kernels_.scale(result.sums.data() + int64_t{r} * stored_value_dim_,
                     rescale, stored_value_dim_);
    }
  }
}

void Attention::Merge(int32_t rows, const Result& span, Result& total) const {
  for (int32_t r = 0; r < rows; ++r) {
    kernels_.merge_softmax(
        &total.states[r], total.sums.data() + int64_t{r} * stored_value_dim_,
        span.states[r], span.sums.data() + int64_t{r} * stored_value_dim_,
        stored_value_dim_);
  }
}

void Attention::WriteOutput(const LayerRun& run, const QueryTile& tile,
                            Heads heads, const Result& result) const {
  // Rows of a token: those of all its heads here.
  const int32_t per_token = heads.count * heads.queries;
  for (int32_t r = 0; r < Rows(tile, heads); ++r) {
    const int64_t head = FirstQueryHead(heads) + r % per_token;
    uint16_t* const out =
        run.output +
        (tile.first_output_row + r / per_token) * run.output_stride +
        head * run.output_head_stride;
    const SoftmaxState& state = result.states[r];
    // Where the sink is far above all scores, infinite: nothing is left.
    const float sink =
        run.sinks.empty() ? 0.0f : std::exp(run.sinks[head] - state.max);
    kernels_.scale_round(result.sums.data() + int64_t{r} * stored_value_dim_,
                         1.0f / (state.sum + sink), value_dim_, out);
  }
}

}  // namespace baton::engine::cpu
