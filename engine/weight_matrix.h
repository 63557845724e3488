// A matrix of weights as its file stores it, read row by row as floats: what a
// backend packs from, whatever the format of the file.
//
// A view: the file (ModelWeights::storage) must stay mapped. Constant, readable
// from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "engine/dtype.h"
#include "engine/int4_grid.h"
#include "engine/packed_layout.h"
#include "engine/safetensors.h"

namespace baton::engine {

// How the weights lie in the file.
enum class WeightEncoding {
  kPlain,  // F32, F16 or BF16: `values` is [rows, columns]
  // Blocks of GGUF: `values` holds the rows one after another, each a whole
  // number of blocks (gguf_blocks.h).
  kGgufQ4_0,
  kGgufQ4_1,
  kGgufQ5_0,
  kGgufQ5_1,
  kGgufQ8_0,
  kGgufQ4K,
  kGgufQ5K,
  kGgufQ6K,
  kGgufMxfp4,
  // 4 or 8 bits per weight with a scale and a zero point for each output and
  // group of inputs (group_blocks.h).
  kGptq,
  kAwq,
  // e4m3 with a scale for all, for each output or for each block (fp8_rows.h).
  kFp8,
  // Of gpt-oss's experts (expert_rows.h): MXFP4, or F32, F16 or BF16 where the
  // outputs of an input lie side by side.
  kMxfp4,
  kByInput,
  // As `baton quantize` wrote them (packed_layout.h).
  kPacked,
  // Of another matrix, `base` (matrix_views.h).
  kPart,
  kTurnedHeads,
};

// "plain", "Q4_K", "GPTQ", "FP8".
const char* WeightEncodingName(WeightEncoding encoding);

// Which outputs of a stored matrix are rows of another one: `rows` from `first`
// on, as many `stride` further, and so on.
struct OutputRun {
  int64_t first = 0;
  int64_t rows = 1;
  int64_t stride = 1;

  int64_t At(int64_t row) const {
    return first + row / rows * stride + row % rows;
  }
};

struct WeightMatrix {
  std::string name;     // of the tensor in the file, for messages
  int64_t rows = 0;     // outputs
  int64_t columns = 0;  // inputs
  WeightEncoding encoding = WeightEncoding::kPlain;
  TensorView values;

  // GPTQ, AWQ, FP8, MXFP4 and packed ones only, else without bytes. F16, BF16
  // or F32, U8 of MXFP4; of GPTQ and AWQ [groups, rows].
  TensorView scales;
  // GPTQ and AWQ only.
  TensorView zeros;        // I32, packed like `values`
  TensorView group_index;  // I32 [columns]: GPTQ files that say it
  int32_t bits = 0;
  int32_t group_size = 0;
  int32_t zero_offset = 0;       // what is added to a stored zero point
  bool groups_in_order = false;  // input k is of group k / group_size

  // FP8 only: outputs and inputs that share a scale.
  int64_t block_rows = 0;
  int64_t block_columns = 0;

  // kPacked only: `values` and `scales` hold what packed_layout.h says.
  PackedLayout packed;
  // kPacked, kMxfp4, kByInput and views only.
  OutputRun run;

  // Views only; the tensors are those of `base`.
  std::shared_ptr<const WeightMatrix> base;
  int64_t first_column = 0;

  // When not 0: rows are heads of this many, stored as StoredRow says (q and k
  // of Llama models in GGUF; of latent attention those from interleaved_first
  // on). ReadRows has them in LayerWeights' order.
  int32_t interleaved_head = 0;
  int32_t interleaved_first = 0;

  // Whether all bytes lie in a read-only mapping of a file.
  bool mapped = false;

  // The views that hold something, in a fixed order.
  std::vector<const TensorView*> Tensors() const;
};

// Where row `row` is stored when each head of `head` rows has the halves of
// what comes behind its row `first` interleaved: of n such rows, row i next to
// row i + n / 2.
int64_t StoredRow(int64_t row, int32_t head, int32_t first = 0);

// Writes the `columns` weights of each of the rows [row, row + count) to `out`,
// one row after another. Fastest for GPTQ and AWQ when `row` and `count` are
// multiples of 8.
// REQUIRES: 0 <= row, row + count <= matrix.rows,
// out.size() == count * matrix.columns.
void ReadRows(const WeightMatrix& matrix, int64_t row, int64_t count,
              absl::Span<float> out);

// The same for one row.
void ReadRow(const WeightMatrix& matrix, int64_t row, absl::Span<float> out);

// Whether weights lie on grids of 64 inputs (int4_grid.h): of 4 bits, with
// groups of whole 64 inputs, in order.
bool HasInt4Grids(const WeightMatrix& matrix);

// The type of the numbers that CopyRows gives: of plain ones and e4m3 that of
// the file; I8 of packed int8; U8, what a grid has, of weights that lie on one;
// e4m3 of MXFP4 that can be it (Mxfp4IsE4m3, which takes a while). None of all
// others.
std::optional<DType> StoredType(const WeightMatrix& matrix);

// As ReadRows, but the numbers as the file has them, of StoredType.
// REQUIRES: there is one.
void CopyRows(const WeightMatrix& matrix, int64_t row, int64_t count,
              std::byte* out);

// What multiplies the numbers of CopyRows in a row, when they are e4m3 or int8.
// REQUIRES: one scale does (ScalesOutputs).
float RowScale(const WeightMatrix& matrix, int64_t row);
// Whether one does. All but e4m3 of files with blocks.
bool ScalesOutputs(const WeightMatrix& matrix);

// The grids on which the weights of rows [row, row + count) lie,
// [count][ceil(columns / 64)]; none unless HasInt4Grids.
std::vector<Int4Grid> ReadInt4Grids(const WeightMatrix& matrix, int64_t row,
                                    int64_t count);

// Tells the kernel that the matrix will not be read again soon: drops what has
// been read of it from this process's memory. Reading it again gives the same
// values. Does nothing for a matrix that is not mapped.
void ReleasePages(const WeightMatrix& matrix);

// The same for the rows [row, row + count) alone, where that is worth a call of
// the kernel: in a large matrix whose rows lie in the order of the file.
void ReleaseRows(const WeightMatrix& matrix, int64_t row, int64_t count);

// The same for bytes of a read-only mapping of a file.
void ReleasePages(absl::Span<const std::byte> bytes);

}  // namespace baton::engine
