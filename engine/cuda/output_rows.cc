#include "engine/cuda/output_rows.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include "absl/types/span.h"
#include "common/log.h"

namespace baton::engine::cuda {
namespace {

// Whether rows of that type stay what they are in a matrix of that format.
bool Keeps(const WeightMatrix& matrix, DType type, WeightFormat format) {
  switch (type) {
    case DType::kF8E4M3:
      return format == WeightFormat::kFp8 && ScalesOutputs(matrix);
    case DType::kI8:
      return format == WeightFormat::kInt8;
    case DType::kU8:
      return format == WeightFormat::kInt4;
    default:
      return true;
  }
}

}  // namespace

WeightFormat FormatOf(const std::vector<OutputRows>& rows) {
  if (CopiedType(rows, WeightFormat::kFp8) == DType::kF8E4M3) {
    return WeightFormat::kFp8;
  }
  return CopiedType(rows, WeightFormat::kInt4) == DType::kU8
             ? WeightFormat::kInt4
             : WeightFormat::kBf16;
}

DType CopiedType(const std::vector<OutputRows>& rows, WeightFormat format) {
  std::optional<DType> type;
  // Those seen, which come in turns: to ask one may take a while.
  std::set<const WeightMatrix*> seen;
  for (const OutputRows& part : rows) {
    if (part.matrix == nullptr || !seen.insert(part.matrix).second) continue;
    const std::optional<DType> stored = StoredType(*part.matrix);
    if (!stored.has_value() || !Keeps(*part.matrix, *stored, format)) {
      return DType::kF32;
    }
    if (type.value_or(*stored) != *stored) return DType::kF32;
    type = stored;
  }
  return type.value_or(DType::kF32);
}

std::vector<float> ScalesOf(const std::vector<OutputRows>& rows) {
  std::vector<float> scales;
  for (const OutputRows& part : rows) {
    for (int64_t i = 0; i < part.count; ++i) {
      scales.push_back(part.matrix == nullptr
                           ? 0.0f
                           : RowScale(*part.matrix, part.first + i));
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
      } else if (type != DType::kF32) {
        CopyRows(*part.matrix, row, end - from, to);
      } else {
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
