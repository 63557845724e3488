// What the blocks of products with experts begin with (expert_matmul.h).
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/expert_matmul.h"

namespace baton::engine::cuda {

// Which row of x is that of row `row` of the tile; of one that is not there,
// any.
BATON_DEVICE int64_t SourceOfPlace(const ExpertMatmulArgs& args,
                                   const RowTile& tile, int32_t row) {
  if (row >= tile.rows) return 0;
  const int32_t place = tile.first + row;
  return args.x_rows == nullptr ? place : args.x_rows[place];
}

// The product of the tile's rows with the matrix of its expert, as if there
// were no others. x, in the natural order, is that of all places.
BATON_DEVICE MatmulArgs ArgsOfTile(const ExpertMatmulArgs& args,
                                   const RowTile& tile) {
  MatmulArgs of_tile = args.first;
  DeviceMatrix& w = of_tile.w;
  const int64_t tiles = int64_t{tile.expert} * w.output_tiles;
  w.tiles += tiles * TileBytes(w.format, w.padded_inputs);
  if (w.scales != nullptr) w.scales += tiles * kTileOutputs;
  if (w.bias != nullptr) w.bias += tiles * kTileOutputs;
  of_tile.rows = tile.rows;
  // Tiles begin with whole blocks of what is staged.
  if (of_tile.x_order == InputOrder::kStaged) {
    of_tile.x += tile.first * int64_t{w.padded_inputs};
  }
  const int64_t before = tile.first * of_tile.out_stride;
  if (of_tile.out != nullptr) of_tile.out += before;
  if (of_tile.gated != nullptr) of_tile.gated += before;
  return of_tile;
}

}  // namespace baton::engine::cuda
