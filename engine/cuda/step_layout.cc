#include "engine/cuda/step_layout.h"

#include <algorithm>

#include "common/log.h"
#include "engine/cuda/latent_attention.h"

namespace baton::engine::cuda {
namespace {

using scheduling::PlannedSequence;

// Grids have at most this many single tokens.
constexpr size_t kMaxSingle = 65535;

// Sorts tiles into those whose spans run apart, which have at most `span_rows`
// rows, and the others.
TileSet SortTiles(const std::vector<QueryTile>& tiles, int32_t window,
                  const LayoutOptions& options, int32_t span_rows = 1) {
  TileSet set;
  int64_t rows = 0;  // of the single ones
  for (const QueryTile& tile : tiles) {
    const bool single = tile.rows <= span_rows &&
                        (options.latent || options.group <= kSpanQueries);
    (single ? set.single : set.whole).push_back(tile);
    if (!single) continue;
    rows += tile.rows;
    set.span_rows = std::max(set.span_rows, tile.rows);
    set.max_spans = std::max(
        set.max_spans, SpansOfAll(tile.first_position,
                                  tile.first_position + tile.rows - 1, window));
  }
  const int64_t pieces = rows * set.max_spans;
  if (pieces > options.max_span_pieces || set.single.size() > kMaxSingle) {
    set.whole.insert(set.whole.end(), set.single.begin(), set.single.end());
    set.single.clear();
    set.max_spans = 0;
    set.span_rows = 1;
  }
  return set;
}

}  // namespace

std::vector<Pass> CutIntoPasses(const scheduling::StepPlan& plan,
                                int32_t max_rows) {
  CHECK_GT(max_rows, 0);
  std::vector<Pass> passes;
  int32_t room = 0;
  for (size_t s = 0; s < plan.sequences.size(); ++s) {
    const auto tokens = static_cast<int32_t>(plan.sequences[s].tokens.size());
    CHECK_GT(tokens, 0);
    for (int32_t first = 0; first < tokens;) {
      if (room == 0) {
        passes.emplace_back();
        room = max_rows;
      }
      const int32_t count = std::min(room, tokens - first);
      passes.back().push_back({static_cast<int32_t>(s), first, count});
      first += count;
      room -= count;
    }
  }
  return passes;
}

LoraGroups GroupByAdapter(absl::Span<const int32_t> adapters) {
  LoraGroups groups;
  for (size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i] != scheduling::kNoAdapter) {
      groups.list.push_back(static_cast<int32_t>(i));
    }
  }
  std::stable_sort(
      groups.list.begin(), groups.list.end(),
      [&](int32_t a, int32_t b) { return adapters[a] < adapters[b]; });
  for (size_t i = 0; i < groups.list.size(); ++i) {
    const int32_t adapter = adapters[groups.list[i]];
    if (groups.tiles.empty() || groups.tiles.back().adapter != adapter ||
        groups.tiles.back().rows == kLoraRows) {
      groups.tiles.push_back({adapter, static_cast<int32_t>(i), 0});
    }
    ++groups.tiles.back().rows;
  }
  return groups;
}

StepLayout LayOut(const scheduling::StepPlan& plan, const Pass& pass,
                  const LayoutOptions& options) {
  StepLayout layout;
  std::vector<int32_t> adapters;
  std::vector<QueryTile> tiles;
  // Of prompts: where single tokens are run whole, for want of memory, each has
  // a block by itself.
  int32_t prompt_rows = 0;
  for (const SequencePart& part : pass) {
    if (part.count > 1 && plan.sequences[part.sequence].num_drafts == 0) {
      prompt_rows += part.count;
    }
  }
  const int32_t tile_queries =
      options.group_attention && prompt_rows >= kGroupAttentionRows
          ? kGroupTileQueries
          : kTileQueries;
  const int32_t tile_rows = options.latent
                                ? LatentTileRows(options.group)
                                : MaxTileRows(options.group, tile_queries);
  // Where all rows are single tokens, those of a sequence's guesses share what
  // they read.
  const int32_t span_rows = !options.latent && IsDecodePass(plan, pass)
                                ? MaxSpanRows(options.group)
                                : 1;
  for (const SequencePart& part : pass) {
    const PlannedSequence& s = plan.sequences[part.sequence];
    const auto first_row = static_cast<int32_t>(layout.tokens.size());
    const int32_t first_position = s.first_position + part.first;
    const int32_t end = first_position + part.count;
    const auto table = static_cast<int32_t>(layout.block_tables.size());
    const int32_t blocks = (end + options.block_size - 1) / options.block_size;
    layout.block_tables.insert(layout.block_tables.end(), s.blocks.begin(),
                               s.blocks.begin() + blocks);
    for (int32_t i = 0; i < part.count; ++i) {
      layout.tokens.push_back(s.tokens[part.first + i]);
      layout.places.push_back({first_position + i, table});
      adapters.push_back(s.adapter);
      const bool sampled = s.SampleAfter(part.first + i) >= 0;
      const bool targeted =
          part.first + i < static_cast<int32_t>(s.targets.size());
      if (targeted || sampled) {
        layout.logit_rows.push_back(
            {first_row + i, part.sequence, part.first + i});
      }
    }
    // Guesses run as the tokens of decode steps do, a few in a block.
    const int32_t most = s.num_drafts > 0 ? span_rows : tile_rows;
    for (int32_t i = 0; i < part.count; i += most) {
      tiles.push_back({first_row + i, first_row + i,
                       std::min(most, part.count - i), first_position + i,
                       table});
    }
    layout.end_position = std::max(layout.end_position, end);
  }
  layout.full = SortTiles(tiles, /*window=*/0, options, span_rows);
  layout.full.tile_queries = tile_queries;
  if (options.window > 0) {
    layout.sliding = SortTiles(tiles, options.window, options, span_rows);
    layout.sliding.tile_queries = tile_queries;
  }
  std::vector<QueryTile> last;
  for (size_t i = 0; i < layout.logit_rows.size(); ++i) {
    const int32_t row = layout.logit_rows[i].row;
    const RowPlace& place = layout.places[row];
    last.push_back(
        {row, static_cast<int32_t>(i), 1, place.position, place.block_table});
  }
  layout.adapted = GroupByAdapter(adapters);
  if (!layout.adapted.list.empty()) {
    std::vector<int32_t> of_logits;
    for (const LogitRow& row : layout.logit_rows) {
      of_logits.push_back(adapters[row.row]);
    }
    layout.adapted_last = GroupByAdapter(of_logits);
  }
  layout.last =
      SortTiles(last, options.last_layer_slides ? options.window : 0, options);
  return layout;
}

bool IsDecodePass(const scheduling::StepPlan& plan, const Pass& pass) {
  return std::all_of(pass.begin(), pass.end(), [&](const SequencePart& part) {
    const PlannedSequence& s = plan.sequences[part.sequence];
    return s.targets.empty() && s.SampleAfter(part.first) >= 0;
  });
}

bool HasSeveralRows(const Pass& pass) {
  return std::any_of(pass.begin(), pass.end(),
                     [](const SequencePart& part) { return part.count > 1; });
}

}  // namespace baton::engine::cuda
