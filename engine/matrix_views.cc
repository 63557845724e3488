#include "engine/matrix_views.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/log.h"
#include "engine/dtype.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

WeightMatrix ViewOf(std::shared_ptr<const WeightMatrix> base) {
  CHECK(base->base == nullptr) << base->name;
  // The tensors, of which the model's identity is made.
  WeightMatrix view = *base;
  view.interleaved_head = 0;
  view.base = std::move(base);
  return view;
}

// Whether a range of its columns can be read alone.
bool IsPlain(const WeightMatrix& matrix) {
  return matrix.encoding == WeightEncoding::kPlain &&
         matrix.interleaved_head == 0;
}

// Columns [first, first + out.size()) of a row; `whole` is scratch.
void ReadColumns(const WeightMatrix& base, int64_t row, int64_t first,
                 std::vector<float>& whole, absl::Span<float> out) {
  if (IsPlain(base)) {
    const int64_t bytes = DTypeBytes(base.values.dtype);
    return ConvertToFloat(
        base.values.dtype,
        base.values.bytes.subspan((row * base.columns + first) * bytes,
                                  static_cast<int64_t>(out.size()) * bytes),
        out);
  }
  whole.resize(base.columns);
  ReadRow(base, row, absl::MakeSpan(whole));
  std::copy_n(whole.begin() + first, out.size(), out.begin());
}

void ReadTurned(const WeightMatrix& matrix, int64_t row, int64_t count,
                absl::Span<float> out) {
  const WeightMatrix& base = *matrix.base;
  std::vector<float> whole;
  std::vector<float> outputs;
  while (count > 0) {
    const int64_t head = row / base.columns;
    const int64_t first = row % base.columns;
    const int64_t some = std::min(count, base.columns - first);
    outputs.resize(some);
    for (int64_t input = 0; input < matrix.columns; ++input) {
      ReadColumns(base, matrix.run.first + head * matrix.run.stride + input,
                  first, whole, absl::MakeSpan(outputs));
      for (int64_t i = 0; i < some; ++i) {
        out[i * matrix.columns + input] = outputs[i];
      }
    }
    out.remove_prefix(some * matrix.columns);
    row += some;
    count -= some;
  }
}

}  // namespace

WeightMatrix PartOf(std::shared_ptr<const WeightMatrix> base,
                    const OutputRun& run, int64_t rows, int64_t first_column,
                    int64_t columns) {
  CHECK(rows == 0 || run.At(rows - 1) < base->rows) << base->name;
  CHECK_LE(first_column + columns, base->columns) << base->name;
  WeightMatrix view = ViewOf(std::move(base));
  view.encoding = WeightEncoding::kPart;
  view.rows = rows;
  view.columns = columns;
  view.run = run;
  view.first_column = first_column;
  return view;
}

WeightMatrix TurnedHeads(std::shared_ptr<const WeightMatrix> base,
                         const OutputRun& run, int64_t heads) {
  CHECK_LE(run.first + (heads - 1) * run.stride + run.rows, base->rows)
      << base->name;
  WeightMatrix view = ViewOf(std::move(base));
  view.encoding = WeightEncoding::kTurnedHeads;
  view.rows = heads * view.base->columns;
  view.columns = run.rows;
  view.run = run;
  return view;
}

void ReadViewRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                  absl::Span<float> out) {
  if (matrix.encoding == WeightEncoding::kTurnedHeads) {
    return ReadTurned(matrix, row, count, out);
  }
  std::vector<float> whole;
  for (int64_t i = 0; i < count; ++i) {
    ReadColumns(*matrix.base, matrix.run.At(row + i), matrix.first_column,
                whole, out.subspan(i * matrix.columns, matrix.columns));
  }
}

}  // namespace baton::engine
