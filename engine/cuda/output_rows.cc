#include "engine/cuda/output_rows.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/types/span.h"
#include "common/log.h"
#include "engine/fp8_rows.h"
#include "engine/group_blocks.h"

namespace baton::engine::cuda {
namespace {

// Whether the file has plain numbers, or e4m3, of this type.
bool IsStoredAs(const WeightMatrix& matrix, DType type) {
  return (matrix.encoding == WeightEncoding::kPlain ||
          matrix.encoding == WeightEncoding::kFp8) &&
         matrix.values.dtype == type;
}

}  // namespace

DType CopiedType(const std::vector<OutputRows>& rows, WeightFormat format) {
  std::optional<DType> type;
  for (const OutputRows& part : rows) {
    if (part.matrix == nullptr) continue;
    if (!type.has_value()) type = part.matrix->values.dtype;
    if (!IsStoredAs(*part.matrix, *type)) return DType::kF32;
    if (part.matrix->encoding == WeightEncoding::kFp8 &&
        (format != WeightFormat::kFp8 || !HasScalePerOutput(*part.matrix))) {
      return DType::kF32;
    }
  }
  return type.value_or(DType::kF32);
}

std::vector<float> ScalesOf(const std::vector<OutputRows>& rows) {
  std::vector<float> scales;
  for (const OutputRows& part : rows) {
    for (int64_t i = 0; i < part.count; ++i) {
      scales.push_back(part.matrix == nullptr
                           ? 0.0f
                           : OutputScale(*part.matrix, part.first + i));
    }
  }
  return scales;
}

void CopyOutputs(const std::vector<OutputRows>& rows, DType type, int64_t first,
                 int64_t count, int32_t inputs, std::byte* out) {
  const int64_t row_bytes = inputs * DTypeBytes(type);
  int64_t begin = 0;  // of the current rows, as outputs
  for (const OutputRows& part : rows) {
    const int64_t from = std::max(first, begin);
    const int64_t end = std::min(first + count, begin + part.count);
    if (from < end) {
      std::byte* const to = out + (from - first) * row_bytes;
      const int64_t row = part.first + from - begin;
      if (part.matrix == nullptr) {
        std::memset(to, 0, (end - from) * row_bytes);
      } else if (IsStoredAs(*part.matrix, type)) {
        CopyRows(*part.matrix, row, end - from, to);
      } else {
        CHECK(type == DType::kF32) << DTypeName(type);
        ReadRows(*part.matrix, row, end - from,
                 absl::MakeSpan(reinterpret_cast<float*>(to),
                                (end - from) * inputs));
      }
    }
    begin += part.count;
  }
}

void CopyGrids(const std::vector<OutputRows>& rows, int64_t first,
               int64_t count, int32_t inputs, Int4Grid* out) {
  const int64_t slices = PaddedInputs(inputs) / kSliceInputs;
  std::fill_n(out, count * slices, Int4Grid{});
  int64_t begin = 0;  // of the current rows, as outputs
  for (const OutputRows& part : rows) {
    const int64_t from = std::max(first, begin);
    const int64_t end = std::min(first + count, begin + part.count);
    if (from < end && part.matrix != nullptr) {
      const std::vector<Int4Grid> grids =
          ReadInt4Grids(*part.matrix, part.first + from - begin, end - from);
      std::copy(grids.begin(), grids.end(), out + (from - first) * slices);
    }
    begin += part.count;
  }
}

}  // namespace baton::engine::cuda
