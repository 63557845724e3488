#include "engine/mxfp4_rows.h"

#include <cstddef>

#include "common/log.h"
#include "engine/mxfp4.h"
#include "engine/packed_rows.h"

namespace baton::engine {
namespace {

uint8_t Low(std::byte pair) { return std::to_integer<uint8_t>(pair) & 0xf; }
uint8_t High(std::byte pair) { return std::to_integer<uint8_t>(pair) >> 4; }

// Neighbours share a byte.
void CopyExpertRow(const WeightMatrix& matrix, int64_t row, uint8_t* codes,
                   uint8_t* exponents) {
  const int64_t groups = matrix.columns / kMxfp4Group;
  const int64_t stored = matrix.run.At(row);
  const std::byte* from =
      matrix.values.bytes.data() + stored * groups * kMxfp4GroupBytes;
  for (int64_t i = 0; i < matrix.columns / 2; ++i, ++from) {
    *codes++ = Low(*from);
    *codes++ = High(*from);
  }
  const std::byte* const scales = matrix.scales.bytes.data() + stored * groups;
  for (int64_t group = 0; group < groups; ++group) {
    exponents[group] = std::to_integer<uint8_t>(scales[group]);
  }
}

// The exponent before the group; its halves share bytes.
void CopyGgufRow(const WeightMatrix& matrix, int64_t row, uint8_t* codes,
                 uint8_t* exponents) {
  const int64_t groups = matrix.columns / kMxfp4Group;
  const std::byte* block =
      matrix.values.bytes.data() + row * groups * (1 + kMxfp4GroupBytes);
  for (int64_t group = 0; group < groups; ++group) {
    exponents[group] = std::to_integer<uint8_t>(block[0]);
    for (int64_t i = 0; i < kMxfp4GroupBytes; ++i) {
      codes[i] = Low(block[1 + i]);
      codes[i + kMxfp4GroupBytes] = High(block[1 + i]);
    }
    codes += kMxfp4Group;
    block += 1 + kMxfp4GroupBytes;
  }
}

}  // namespace

bool HasMxfp4(const WeightMatrix& matrix) {
  switch (matrix.encoding) {
    case WeightEncoding::kMxfp4:
      return true;
    case WeightEncoding::kGgufMxfp4:
      return matrix.interleaved_head == 0;
    case WeightEncoding::kPacked:
      return matrix.packed.mxfp4;
    default:
      return false;
  }
}

void CopyMxfp4Row(const WeightMatrix& matrix, int64_t row, uint8_t* codes,
                  uint8_t* exponents) {
  CHECK(HasMxfp4(matrix)) << matrix.name;
  CHECK(row >= 0 && row < matrix.rows) << matrix.name;
  switch (matrix.encoding) {
    case WeightEncoding::kMxfp4:
      return CopyExpertRow(matrix, row, codes, exponents);
    case WeightEncoding::kPacked:
      return CopyPackedMxfp4Row(matrix, row, codes, exponents);
    default:
      return CopyGgufRow(matrix, row, codes, exponents);
  }
}

}  // namespace baton::engine
