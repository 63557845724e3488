// The arrays of a pass, from its layout to the device.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "common/log.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/sample_plan.h"
#include "scheduling/token_mask.h"

namespace baton::engine::cuda {
namespace {

int64_t MaskWords(const DrawLists& lists) {
  int64_t words = 0;
  for (const scheduling::TokenMask* mask : lists.masks) {
    words += static_cast<int64_t>(mask->words().size());
  }
  return words;
}

}  // namespace

void ForwardPass::EnsureUpload(int64_t bytes) {
  if (bytes <= upload_.capacity()) return;
  stream_.Wait();
  ForgetGraphs();
  const absl::Status status =
      upload_.Grow(std::max(bytes, 2 * upload_.capacity()));
  CHECK(status.ok()) << status;
}

int64_t ForwardPass::UploadBytes(const StepLayout& layout, int64_t rows,
                                 const DrawLists& lists) {
  const auto tables = static_cast<int64_t>(layout.block_tables.size());
  const int64_t logit_rows =
      std::max(rows, static_cast<int64_t>(layout.logit_rows.size()));
  return rows * int64_t{sizeof(TokenId) + sizeof(RowPlace)} +
         tables * int64_t{sizeof(BlockId)} +
         3 * logit_rows * int64_t{sizeof(QueryTile)} +
         logit_rows *
             int64_t{sizeof(int32_t) + sizeof(SampleRow) + sizeof(TokenId)} +
         static_cast<int64_t>(lists.edits.size() * sizeof(LogitEdit)) +
         MaskWords(lists) * int64_t{sizeof(uint32_t)} +
         // A tile has a row at least.
         2 * logit_rows * int64_t{sizeof(LoraTile) + sizeof(int32_t)} +
         21 * StepUpload::kAlignment;
}

const QueryTile* ForwardPass::UploadTiles(const std::vector<QueryTile>& tiles,
                                          int64_t rows) {
  const auto array = upload_.Reserve<QueryTile>(rows);
  std::copy(tiles.begin(), tiles.end(), array.host.begin());
  std::fill(array.host.begin() + tiles.size(), array.host.end(), QueryTile{});
  return array.device;
}

ForwardPass::DeviceTiles ForwardPass::UploadTileSet(const TileSet& tiles) {
  DeviceTiles result;
  result.num_whole = static_cast<int32_t>(tiles.whole.size());
  result.tile_queries = tiles.tile_queries;
  result.num_single = static_cast<int32_t>(tiles.single.size());
  result.max_spans = tiles.max_spans;
  result.span_rows = tiles.span_rows;
  result.whole = UploadTiles(tiles.whole, result.num_whole);
  result.single = UploadTiles(tiles.single, result.num_single);
  return result;
}

LoraRows ForwardPass::UploadLoraRows(const LoraGroups& groups, int64_t tiles,
                                     int64_t rows) {
  LoraRows result;
  if (tiles == 0) return result;
  const auto placed = upload_.Reserve<LoraTile>(tiles);
  std::copy(groups.tiles.begin(), groups.tiles.end(), placed.host.begin());
  std::fill(placed.host.begin() + groups.tiles.size(), placed.host.end(),
            LoraTile{});
  const auto list = upload_.Reserve<int32_t>(rows);
  std::copy(groups.list.begin(), groups.list.end(), list.host.begin());
  std::fill(list.host.begin() + groups.list.size(), list.host.end(), 0);
  result.tiles = placed.device;
  result.num_tiles = static_cast<int32_t>(tiles);
  result.list = list.device;
  return result;
}

// Of `rows`, what the layout does not have is not there.
void ForwardPass::UploadRows(const StepLayout& layout, int64_t rows,
                             PassArrays* arrays) {
  arrays->rows = static_cast<int32_t>(rows);
  const auto tokens = upload_.Reserve<TokenId>(rows);
  std::copy(layout.tokens.begin(), layout.tokens.end(), tokens.host.begin());
  std::fill(tokens.host.begin() + layout.tokens.size(), tokens.host.end(), 0);
  arrays->tokens = tokens.device;
  const auto places = upload_.Reserve<RowPlace>(rows);
  std::copy(layout.places.begin(), layout.places.end(), places.host.begin());
  std::fill(places.host.begin() + layout.places.size(), places.host.end(),
            RowPlace{});
  arrays->places = places.device;
}

// How rows are drawn, then the block tables, then edits and masks. What lies
// behind an array whose size differs from step to step has no fixed place:
// edits and masks are found by their distance from the first array.
void ForwardPass::UploadSamples(const StepLayout& layout, const Draws& draws,
                                int64_t rows, PassArrays* arrays) {
  const auto how = upload_.Reserve<SampleRow>(rows);
  const auto tables = upload_.Reserve<BlockId>(
      static_cast<int64_t>(layout.block_tables.size()));
  std::copy(layout.block_tables.begin(), layout.block_tables.end(),
            tables.host.begin());
  const DrawLists& lists = draws.lists;
  const auto edits =
      upload_.Reserve<LogitEdit>(static_cast<int64_t>(lists.edits.size()));
  std::copy(lists.edits.begin(), lists.edits.end(), edits.host.begin());
  const auto masks = upload_.Reserve<uint32_t>(MaskWords(lists));
  auto word = masks.host.begin();
  for (const scheduling::TokenMask* mask : lists.masks) {
    word = std::copy(mask->words().begin(), mask->words().end(), word);
  }
  arrays->how = how.device;
  arrays->block_tables = tables.device;
  arrays->edits = reinterpret_cast<const LogitEdit*>(upload_.device());
  arrays->masks = reinterpret_cast<const uint32_t*>(upload_.device());
  const auto first = static_cast<int32_t>(edits.device - arrays->edits);
  const auto first_word = static_cast<int32_t>(masks.device - arrays->masks);
  for (int64_t i = 0; i < rows; ++i) {
    SampleRow& row = how.host[i];
    row = {};
    row.statistics_only = 1;
    if (i < static_cast<int64_t>(draws.how.size())) row = draws.how[i];
    row.first_edit += first;
    if (row.mask != kNoMask) {
      const int32_t place = row.mask - 1;
      row.mask = first_word + place * static_cast<int32_t>(
                                          lists.masks[place]->words().size());
    }
  }
}

}  // namespace baton::engine::cuda
