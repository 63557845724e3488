#include "engine/group_blocks.h"

#include <cstddef>
#include <cstring>
#include <vector>

#include "engine/float_convert.h"

namespace baton::engine {
namespace {

// Where AWQ keeps output i of eight: in bits [4 * n, 4 * n + 4) of the word.
constexpr int kAwqNibble[8] = {0, 4, 1, 5, 2, 6, 3, 7};

// Word i of an I32 tensor, which need not be aligned.
uint32_t WordAt(const TensorView& view, int64_t i) {
  uint32_t word;
  std::memcpy(&word, view.bytes.data() + i * sizeof(word), sizeof(word));
  return word;
}

float ScaleAt(const TensorView& view, int64_t i) {
  const int64_t size = DTypeBytes(view.dtype);
  float scale = 0.0f;
  ConvertToFloat(view.dtype, view.bytes.subspan(i * size, size),
                 absl::MakeSpan(&scale, 1));
  return scale;
}

// The groups' scales and zero points of some outputs.
class Groups final {
 public:
  Groups(const WeightMatrix& m, int64_t row, int64_t count)
      : count_(count), group_size_(m.group_size), index_(m.group_index) {
    const int per_word = 32 / m.bits;
    const uint32_t mask = (uint32_t{1} << m.bits) - 1;
    const int64_t groups = m.scales.num_elements() / m.rows;
    for (int64_t group = 0; group < groups; ++group) {
      for (int64_t n = row; n < row + count; ++n) {
        const uint32_t word =
            WordAt(m.zeros, group * (m.rows / per_word) + n / per_word);
        const int place = static_cast<int>(n % per_word);
        const int shift = m.encoding == WeightEncoding::kAwq
                              ? 4 * kAwqNibble[place]
                              : m.bits * place;
        const uint32_t zero =
            ((word >> shift) + static_cast<uint32_t>(m.zero_offset)) & mask;
        scales_.push_back(ScaleAt(m.scales, group * m.rows + n));
        zeros_.push_back(static_cast<int32_t>(zero));
      }
    }
  }

  int64_t GroupOf(int64_t input) const {
    return index_.bytes.empty() ? input / group_size_ : WordAt(index_, input);
  }
  Int4Grid Grid(int64_t group, int64_t i) const {
    return {scales_[group * count_ + i], zeros_[group * count_ + i]};
  }
  // Output `i` of those given.
  float Weight(int64_t group, int64_t i, uint32_t stored) const {
    return static_cast<float>(static_cast<int32_t>(stored) -
                              zeros_[group * count_ + i]) *
           scales_[group * count_ + i];
  }

 private:
  const int64_t count_;
  const int64_t group_size_;
  const TensorView& index_;
  std::vector<float> scales_;   // [groups][count]
  std::vector<int32_t> zeros_;  // [groups][count]
};

void ReadGptq(const WeightMatrix& m, int64_t row, int64_t count,
              absl::Span<float> out) {
  const Groups groups(m, row, count);
  const int per_word = 32 / m.bits;
  const uint32_t mask = (uint32_t{1} << m.bits) - 1;
  int64_t group[8] = {};
  for (int64_t first = 0; first < m.columns; first += per_word) {
    for (int j = 0; j < per_word; ++j) group[j] = groups.GroupOf(first + j);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t word =
          WordAt(m.values, first / per_word * m.rows + row + i);
      float* const weights = out.data() + i * m.columns + first;
      for (int j = 0; j < per_word; ++j) {
        weights[j] = groups.Weight(group[j], i, (word >> (m.bits * j)) & mask);
      }
    }
  }
}

void ReadAwq(const WeightMatrix& m, int64_t row, int64_t count,
             absl::Span<float> out) {
  const Groups groups(m, row, count);
  for (int64_t input = 0; input < m.columns; ++input) {
    const int64_t group = groups.GroupOf(input);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t n = row + i;
      const uint32_t word = WordAt(m.values, input * (m.rows / 8) + n / 8);
      out[i * m.columns + input] =
          groups.Weight(group, i, word >> (4 * kAwqNibble[n % 8]) & 15);
    }
  }
}

}  // namespace

void ReadGroupedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                     absl::Span<float> out) {
  if (matrix.encoding == WeightEncoding::kAwq) {
    ReadAwq(matrix, row, count, out);
  } else {
    ReadGptq(matrix, row, count, out);
  }
}

std::vector<Int4Grid> ReadGroupedGrids(const WeightMatrix& matrix, int64_t row,
                                       int64_t count) {
  const bool whole = matrix.group_size % kInt4GroupInputs == 0 ||
                     matrix.group_size >= matrix.columns;
  if (matrix.bits != 4 || !matrix.groups_in_order || !whole) return {};
  const Groups groups(matrix, row, count);
  std::vector<Int4Grid> grids;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t k = 0; k < matrix.columns; k += kInt4GroupInputs) {
      grids.push_back(groups.Grid(k / matrix.group_size, i));
    }
  }
  return grids;
}

}  // namespace baton::engine
