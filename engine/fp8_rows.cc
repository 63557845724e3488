#include "engine/fp8_rows.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "engine/e4m3.h"
#include "engine/float_convert.h"

namespace baton::engine {
namespace {

const std::array<float, 256>& Values() {
  static const auto values = [] {
    std::array<float, 256> all{};
    for (int i = 0; i < 256; ++i) {
      all[i] = E4m3ToFloat(static_cast<uint8_t>(i));
    }
    return all;
  }();
  return values;
}

int64_t ScalesOfRow(const WeightMatrix& matrix) {
  return (matrix.columns + matrix.block_columns - 1) / matrix.block_columns;
}

// Those of the row's blocks, one after another.
void ReadScales(const WeightMatrix& matrix, int64_t row,
                absl::Span<float> out) {
  const int64_t bytes = DTypeBytes(matrix.scales.dtype);
  const auto count = static_cast<int64_t>(out.size());
  const int64_t first = row / matrix.block_rows * count;
  ConvertToFloat(matrix.scales.dtype,
                 matrix.scales.bytes.subspan(first * bytes, count * bytes),
                 out);
}

}  // namespace

void ReadFp8Rows(const WeightMatrix& matrix, int64_t row, int64_t count,
                 absl::Span<float> out) {
  const std::array<float, 256>& values = Values();
  std::vector<float> scales(ScalesOfRow(matrix));
  const auto* bytes =
      reinterpret_cast<const uint8_t*>(matrix.values.bytes.data()) +
      row * matrix.columns;
  float* to = out.data();
  for (int64_t i = row; i < row + count; ++i) {
    ReadScales(matrix, i, absl::MakeSpan(scales));
    for (int64_t begin = 0, block = 0; begin < matrix.columns; ++block) {
      const int64_t end =
          std::min<int64_t>(matrix.columns, begin + matrix.block_columns);
      const float scale = scales[block];
      for (int64_t k = begin; k < end; ++k) to[k] = values[bytes[k]] * scale;
      begin = end;
    }
    bytes += matrix.columns;
    to += matrix.columns;
  }
}

bool HasScalePerOutput(const WeightMatrix& matrix) {
  return matrix.encoding == WeightEncoding::kFp8 && ScalesOfRow(matrix) == 1;
}

float OutputScale(const WeightMatrix& matrix, int64_t row) {
  float scale = 0.0f;
  ReadScales(matrix, row, absl::MakeSpan(&scale, 1));
  return scale;
}

}  // namespace baton::engine
