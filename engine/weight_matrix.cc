#include "engine/weight_matrix.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "common/log.h"
#include "engine/expert_rows.h"
#include "engine/float_convert.h"
#include "engine/fp8_rows.h"
#include "engine/gguf_blocks.h"
#include "engine/group_blocks.h"
#include "engine/matrix_views.h"
#include "engine/mxfp4_rows.h"
#include "engine/packed_rows.h"

namespace baton::engine {
namespace {

// Smaller matrices are released whole.
constexpr int64_t kLargeMatrixBytes = int64_t{16} << 20;

// Row `row` as the file has it.
absl::Span<const std::byte> RowBytes(const WeightMatrix& matrix, int64_t row) {
  const int64_t bytes =
      static_cast<int64_t>(matrix.values.bytes.size()) / matrix.rows;
  const int32_t head = matrix.interleaved_head;
  const int64_t stored =
      head == 0 ? row : StoredRow(row, head, matrix.interleaved_first);
  return matrix.values.bytes.subspan(stored * bytes, bytes);
}

// Whether RowBytes has all that there is of a row.
bool HasRowsOfBytes(const WeightMatrix& matrix) {
  return matrix.encoding != WeightEncoding::kFp8 &&
         matrix.encoding != WeightEncoding::kGptq &&
         matrix.encoding != WeightEncoding::kAwq;
}

}  // namespace

const char* WeightEncodingName(WeightEncoding encoding) {
  switch (encoding) {
    case WeightEncoding::kPlain:
      return "plain";
    case WeightEncoding::kGgufQ4_0:
      return "Q4_0";
    case WeightEncoding::kGgufQ4_1:
      return "Q4_1";
    case WeightEncoding::kGgufQ5_0:
      return "Q5_0";
    case WeightEncoding::kGgufQ5_1:
      return "Q5_1";
    case WeightEncoding::kGgufQ8_0:
      return "Q8_0";
    case WeightEncoding::kGgufQ4K:
      return "Q4_K";
    case WeightEncoding::kGgufQ5K:
      return "Q5_K";
    case WeightEncoding::kGgufQ6K:
      return "Q6_K";
    case WeightEncoding::kGgufMxfp4:
      return "GGUF MXFP4";
    case WeightEncoding::kGptq:
      return "GPTQ";
    case WeightEncoding::kAwq:
      return "AWQ";
    case WeightEncoding::kFp8:
      return "FP8";
    case WeightEncoding::kMxfp4:
      return "MXFP4";
    case WeightEncoding::kByInput:
      return "by input";
    case WeightEncoding::kPacked:
      return "packed";
    case WeightEncoding::kPart:
      return "a part";
    case WeightEncoding::kTurnedHeads:
      return "turned heads";
  }
  LOG(FATAL) << "not an encoding";
}

std::vector<const TensorView*> WeightMatrix::Tensors() const {
  std::vector<const TensorView*> tensors = {&values};
  for (const TensorView* tensor : {&scales, &zeros, &group_index}) {
    if (!tensor->bytes.empty()) tensors.push_back(tensor);
  }
  return tensors;
}

int64_t StoredRow(int64_t row, int32_t head, int32_t first) {
  const int64_t i = row % head - first;
  if (i < 0) return row;
  const int32_t half = (head - first) / 2;
  return row - i + 2 * (i % half) + i / half;
}

void ReadRows(const WeightMatrix& matrix, int64_t row, int64_t count,
              absl::Span<float> out) {
  CHECK(row >= 0 && count >= 0 && row + count <= matrix.rows) << matrix.name;
  CHECK_EQ(static_cast<int64_t>(out.size()), count * matrix.columns)
      << matrix.name;
  const auto row_out = [&](int64_t i) {
    return out.subspan(i * matrix.columns, matrix.columns);
  };
  if (matrix.interleaved_head > 0 && !HasRowsOfBytes(matrix)) {
    WeightMatrix in_order = matrix;
    in_order.interleaved_head = 0;
    for (int64_t i = 0; i < count; ++i) {
      ReadRow(
          in_order,
          StoredRow(row + i, matrix.interleaved_head, matrix.interleaved_first),
          row_out(i));
    }
    return;
  }
  switch (matrix.encoding) {
    case WeightEncoding::kPlain:
      for (int64_t i = 0; i < count; ++i) {
        ConvertToFloat(matrix.values.dtype, RowBytes(matrix, row + i),
                       row_out(i));
      }
      return;
    case WeightEncoding::kGgufQ4_0:
    case WeightEncoding::kGgufQ4_1:
    case WeightEncoding::kGgufQ5_0:
    case WeightEncoding::kGgufQ5_1:
    case WeightEncoding::kGgufQ8_0:
    case WeightEncoding::kGgufQ4K:
    case WeightEncoding::kGgufQ5K:
    case WeightEncoding::kGgufQ6K:
    case WeightEncoding::kGgufMxfp4:
      for (int64_t i = 0; i < count; ++i) {
        ReadGgufBlocks(matrix.encoding, RowBytes(matrix, row + i), row_out(i));
      }
      return;
    case WeightEncoding::kGptq:
    case WeightEncoding::kAwq:
      return ReadGroupedRows(matrix, row, count, out);
    case WeightEncoding::kFp8:
      return ReadFp8Rows(matrix, row, count, out);
    case WeightEncoding::kMxfp4:
    case WeightEncoding::kByInput:
      return ReadExpertRows(matrix, row, count, out);
    case WeightEncoding::kPacked:
      return ReadPackedRows(matrix, row, count, out);
    case WeightEncoding::kPart:
    case WeightEncoding::kTurnedHeads:
      return ReadViewRows(matrix, row, count, out);
  }
}

void ReadRow(const WeightMatrix& matrix, int64_t row, absl::Span<float> out) {
  ReadRows(matrix, row, 1, out);
}

bool HasInt4Grids(const WeightMatrix& matrix) {
  switch (matrix.encoding) {
    case WeightEncoding::kGptq:
    case WeightEncoding::kAwq:
      return HasGroupedGrids(matrix);
    case WeightEncoding::kPacked:
      return matrix.packed.bits == 4 && !matrix.packed.mxfp4;
    default:
      return false;
  }
}

std::optional<DType> StoredType(const WeightMatrix& matrix) {
  if (HasInt4Grids(matrix)) return DType::kU8;
  if (HasMxfp4(matrix)) {
    if (Mxfp4IsE4m3(matrix)) return DType::kF8E4M3;
    return std::nullopt;
  }
  switch (matrix.encoding) {
    case WeightEncoding::kPlain:
    case WeightEncoding::kFp8:
      return matrix.values.dtype;
    case WeightEncoding::kPacked:
      return matrix.packed.bits == 16 ? DType::kBf16 : DType::kI8;
    default:
      return std::nullopt;
  }
}

void CopyRows(const WeightMatrix& matrix, int64_t row, int64_t count,
              std::byte* out) {
  CHECK(row >= 0 && count >= 0 && row + count <= matrix.rows) << matrix.name;
  if (count == 0) return;
  if (HasMxfp4(matrix)) {
    return CopyMxfp4AsE4m3(matrix, row, count, reinterpret_cast<uint8_t*>(out));
  }
  CHECK(StoredType(matrix).has_value()) << matrix.name;
  if (matrix.encoding == WeightEncoding::kPacked) {
    return CopyPackedRows(matrix, row, count, out);
  }
  if (HasInt4Grids(matrix)) {
    return CopyGroupedRows(matrix, row, count, reinterpret_cast<uint8_t*>(out));
  }
  const absl::Span<const std::byte> first = RowBytes(matrix, row);
  if (matrix.interleaved_head == 0) {
    std::memcpy(out, first.data(), count * first.size());
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(out + i * first.size(), RowBytes(matrix, row + i).data(),
                first.size());
  }
}

float RowScale(const WeightMatrix& matrix, int64_t row) {
  if (HasMxfp4(matrix)) return Mxfp4RowScale(matrix, row);
  return matrix.encoding == WeightEncoding::kPacked ? PackedScale(matrix, row)
                                                    : OutputScale(matrix, row);
}

bool ScalesOutputs(const WeightMatrix& matrix) {
  return matrix.encoding != WeightEncoding::kFp8 || HasScalePerOutput(matrix);
}

std::vector<Int4Grid> ReadInt4Grids(const WeightMatrix& matrix, int64_t row,
                                    int64_t count) {
  if (!HasInt4Grids(matrix)) return {};
  return matrix.encoding == WeightEncoding::kPacked
             ? ReadPackedGrids(matrix, row, count)
             : ReadGroupedGrids(matrix, row, count);
}

void ReleasePages(const WeightMatrix& matrix) {
  if (!matrix.mapped) return;
  for (const TensorView* tensor : matrix.Tensors()) {
    ReleasePages(tensor->bytes);
  }
}

void ReleaseRows(const WeightMatrix& matrix, int64_t row, int64_t count) {
  const bool in_order = matrix.encoding != WeightEncoding::kGptq &&
                        matrix.encoding != WeightEncoding::kAwq &&
                        matrix.encoding != WeightEncoding::kPacked &&
                        matrix.encoding != WeightEncoding::kMxfp4 &&
                        matrix.encoding != WeightEncoding::kByInput &&
                        matrix.base == nullptr && matrix.interleaved_head == 0;
  const auto size = static_cast<int64_t>(matrix.values.bytes.size());
  if (!matrix.mapped || !in_order || size < kLargeMatrixBytes) return;
  const int64_t row_bytes = size / matrix.rows;
  ReleasePages(matrix.values.bytes.subspan(row * row_bytes, count * row_bytes));
}

void ReleasePages(absl::Span<const std::byte> bytes) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(bytes.data());
  // Only the pages that hold nothing else: a neighbour may be in use.
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + bytes.size()) / page * page;
  if (begin >= end) return;
  // Where the kernel refuses (locked pages), they stay.
  madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace baton::engine
