#include "engine/mxfp4_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "common/log.h"
#include "engine/e4m3.h"
#include "engine/mxfp4.h"
#include "engine/packed_rows.h"

namespace baton::engine {
namespace {

uint8_t Low(std::byte pair) { return std::to_integer<uint8_t>(pair) & 0xf; }
uint8_t High(std::byte pair) { return std::to_integer<uint8_t>(pair) >> 4; }

// Neighbours share a byte. Its exponents lie apart.
void CopyExpertCodes(const WeightMatrix& matrix, int64_t row, uint8_t* codes) {
  const std::byte* from =
      matrix.values.bytes.data() + matrix.run.At(row) * (matrix.columns / 2);
  for (int64_t i = 0; i < matrix.columns / 2; ++i, ++from) {
    *codes++ = Low(*from);
    *codes++ = High(*from);
  }
}
const std::byte* ExpertExponents(const WeightMatrix& matrix, int64_t row) {
  return matrix.scales.bytes.data() +
         matrix.run.At(row) * (matrix.columns / kMxfp4Group);
}

// The exponent before the group; its halves share bytes.
constexpr int64_t kBlockBytes = 1 + kMxfp4GroupBytes;
const std::byte* GgufRow(const WeightMatrix& matrix, int64_t row) {
  return matrix.values.bytes.data() +
         row * (matrix.columns / kMxfp4Group) * kBlockBytes;
}
void CopyGgufCodes(const WeightMatrix& matrix, int64_t row, uint8_t* codes) {
  const std::byte* block = GgufRow(matrix, row);
  for (int64_t k = 0; k < matrix.columns; k += kMxfp4Group) {
    for (int64_t i = 0; i < kMxfp4GroupBytes; ++i) {
      codes[k + i] = Low(block[1 + i]);
      codes[k + i + kMxfp4GroupBytes] = High(block[1 + i]);
    }
    block += kBlockBytes;
  }
}

void CopyCodes(const WeightMatrix& matrix, int64_t row, uint8_t* codes) {
  switch (matrix.encoding) {
    case WeightEncoding::kMxfp4:
      return CopyExpertCodes(matrix, row, codes);
    case WeightEncoding::kPacked:
      return CopyPackedMxfp4Codes(matrix, row, codes);
    default:
      return CopyGgufCodes(matrix, row, codes);
  }
}

void CopyExponents(const WeightMatrix& matrix, int64_t row,
                   absl::Span<uint8_t> exponents) {
  switch (matrix.encoding) {
    case WeightEncoding::kMxfp4:
      std::memcpy(exponents.data(), ExpertExponents(matrix, row),
                  exponents.size());
      return;
    case WeightEncoding::kPacked:
      return CopyPackedMxfp4Exponents(matrix, row, exponents.data());
    default: {
      const std::byte* const blocks = GgufRow(matrix, row);
      for (size_t group = 0; group < exponents.size(); ++group) {
        exponents[group] =
            std::to_integer<uint8_t>(blocks[group * kBlockBytes]);
      }
    }
  }
}

// The largest exponent of a row becomes that of 64, so that 6 is 384, of at
// most 448; 0.5 with one 14 less is the smallest e4m3, 2^-9.
constexpr int kTopExponent = 6;
constexpr int kExponentSpan = 14;
// So that the scale of a row is a normal float.
constexpr int kLeastTop = kTopExponent + 1;

int TopOf(absl::Span<const uint8_t> exponents) {
  int top = 0;
  for (const uint8_t exponent : exponents) top = std::max<int>(top, exponent);
  return top;
}

// The numbers of MXFP4, by how far their exponent is below the largest.
std::array<std::array<uint8_t, 16>, kExponentSpan + 1> E4m3Numbers() {
  std::array<std::array<uint8_t, 16>, kExponentSpan + 1> numbers;
  for (int below = 0; below <= kExponentSpan; ++below) {
    for (unsigned code = 0; code < 16; ++code) {
      numbers[below][code] =
          FloatToE4m3(std::ldexp(E2m1ToFloat(code), kTopExponent - below));
    }
  }
  return numbers;
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
  CopyCodes(matrix, row, codes);
  CopyExponents(matrix, row,
                absl::MakeSpan(exponents, matrix.columns / kMxfp4Group));
}

bool Mxfp4IsE4m3(const WeightMatrix& matrix) {
  std::vector<uint8_t> exponents(matrix.columns / kMxfp4Group);
  std::vector<uint8_t> codes(matrix.columns);
  for (int64_t row = 0; row < matrix.rows; ++row) {
    CopyExponents(matrix, row, absl::MakeSpan(exponents));
    const auto [least, top] =
        std::minmax_element(exponents.begin(), exponents.end());
    if (*top > kGreatestMxfp4Exponent) return false;
    if (*top - *least <= kExponentSpan && *top >= kLeastTop) continue;
    // Zeros may have any.
    CopyCodes(matrix, row, codes.data());
    for (size_t group = 0; group < exponents.size(); ++group) {
      if (*top - exponents[group] <= kExponentSpan && *top >= kLeastTop) {
        continue;
      }
      const auto* const numbers = codes.data() + group * kMxfp4Group;
      if (std::any_of(numbers, numbers + kMxfp4Group,
                      [](uint8_t code) { return (code & 7) != 0; })) {
        return false;
      }
    }
  }
  return true;
}

void CopyMxfp4AsE4m3(const WeightMatrix& matrix, int64_t row, int64_t count,
                     uint8_t* out) {
  static const auto kNumbers = E4m3Numbers();
  std::vector<uint8_t> exponents(matrix.columns / kMxfp4Group);
  for (int64_t i = 0; i < count; ++i, out += matrix.columns) {
    CopyMxfp4Row(matrix, row + i, out, exponents.data());
    const int top = TopOf(exponents);
    for (size_t group = 0; group < exponents.size(); ++group) {
      // Where they are further apart, numbers are zero.
      const std::array<uint8_t, 16>& numbers =
          kNumbers[std::min(top - exponents[group], kExponentSpan)];
      uint8_t* const of = out + group * kMxfp4Group;
      for (int64_t k = 0; k < kMxfp4Group; ++k) of[k] = numbers[of[k]];
    }
  }
}

float Mxfp4RowScale(const WeightMatrix& matrix, int64_t row) {
  std::vector<uint8_t> exponents(matrix.columns / kMxfp4Group);
  CopyExponents(matrix, row, absl::MakeSpan(exponents));
  return E8m0ToFloat(std::max(TopOf(exponents), kLeastTop) - kTopExponent);
}

}  // namespace baton::engine
