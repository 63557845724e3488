// Which rows of a model's matrices are the outputs of a matrix on the device,
// and how they get there: copied as the file has them, where that can be, so
// that the host does nothing but copy, and the device rounds and rearranges
// (pack_tiles.h). Pure functions, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cuda/weight_tiles.h"
#include "engine/dtype.h"
#include "engine/int4_grid.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {

// Rows of a matrix of the model that are outputs, one after another, of a
// matrix on the device. No matrix: outputs that are zero.
struct OutputRows {
  const WeightMatrix* matrix = nullptr;
  int64_t first = 0;
  int64_t count = 0;
};

// The format that holds the weights of these rows as their files do: int4 of
// those on grids of 4 bits, fp8 of e4m3 with a scale per output, and of MXFP4
// that can be it; else bfloat16.
WeightFormat FormatOf(const std::vector<OutputRows>& rows);

// What these rows are copied as for a matrix of that format: the type that all
// of them have in their files, where those hold plain numbers of one type, e4m3
// with a scale per output (or MXFP4 that can be it) for kFp8, packed int8 for
// kInt8, or U8 on grids for kInt4; else float32.
DType CopiedType(const std::vector<OutputRows>& rows, WeightFormat format);

// The scales of rows that are copied as e4m3 or int8, one for each output.
std::vector<float> ScalesOf(const std::vector<OutputRows>& rows);

// Writes outputs [first, first + count) of the matrix made of `rows` to `out`,
// one after another, as CopiedType says or as float32: `type` is one of these.
// REQUIRES: all matrices have `inputs` columns.
void CopyOutputs(const std::vector<OutputRows>& rows, DType type, int64_t first,
                 int64_t count, int32_t inputs, std::byte* out);

// Writes the grids of outputs [first, first + count), one for each 64 inputs of
// each: those on which their weights lie in the file, and zeros where they lie
// on none. Of a tile they are TileGridBytes.
inline int64_t TileGridBytes(int32_t inputs) {
  return int64_t{kTileOutputs} * (PaddedInputs(inputs) / kSliceInputs) *
         int64_t{sizeof(Int4Grid)};
}
void CopyGrids(const std::vector<OutputRows>& rows, int64_t first,
               int64_t count, int32_t inputs, Int4Grid* out);

}  // namespace baton::engine::cuda
