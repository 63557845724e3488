#include "engine/group_blocks.h"

#include <algorithm>
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

// The 4-bit numbers of a word as bytes, the lowest first.
uint64_t Spread(uint32_t word) {
  uint64_t x = word;
  x = (x | x << 16) & 0x0000ffff0000ffffu;
  x = (x | x << 8) & 0x00ff00ff00ff00ffu;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0fu;
}

// Bytes [row][column] become [column][row].
void Transpose(uint64_t (&rows)[8]) {
  // Blocks of 4, 2 and 1 change places across the diagonal (Warren, Hacker's
  // Delight, 7-3).
  const auto exchange = [&](int distance, uint64_t mask) {
    for (int i = 0; i < 8; ++i) {
      if ((i & distance) != 0) continue;
      const uint64_t moved =
          (rows[i] >> 8 * distance ^ rows[i + distance]) & mask;
      rows[i + distance] ^= moved;
      rows[i] ^= moved << 8 * distance;
    }
  };
  exchange(4, 0x00000000ffffffffu);
  exchange(2, 0x0000ffff0000ffffu);
  exchange(1, 0x00ff00ff00ff00ffu);
}

void CopyGptq(const WeightMatrix& m, int64_t row, int64_t count, uint8_t* out) {
  // A line of each row at a time: rows mostly lie where caches have them in one
  // place.
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < m.columns; line += kLine) {
    const int64_t end = std::min(line + kLine, m.columns);
    for (int64_t i = 0; i < count; ++i) {
      uint8_t* const to = out + i * m.columns;
      for (int64_t k = line; k < end; k += 8) {
        const uint64_t bytes =
            Spread(WordAt(m.values, k / 8 * m.rows + row + i));
        std::memcpy(to + k, &bytes, sizeof(bytes));
      }
    }
  }
}

// A line of inputs at a time, too, of outputs that words hold together.
void CopyAwq(const WeightMatrix& m, int64_t row, int64_t count, uint8_t* out) {
  constexpr int64_t kLine = 64;
  for (int64_t line = 0; line < m.columns; line += kLine) {
    const int64_t end = std::min(line + kLine, m.columns);
    for (int64_t done = 0; done < count;) {
      const int64_t n = row + done;
      const int64_t here = std::min(8 - n % 8, count - done);
      for (int64_t first = line; first < end; first += 8) {
        const int64_t inputs = std::min<int64_t>(8, end - first);
        uint64_t bytes[8] = {};
        for (int64_t k = 0; k < inputs; ++k) {
          bytes[k] =
              Spread(WordAt(m.values, (first + k) * (m.rows / 8) + n / 8));
        }
        Transpose(bytes);
        for (int64_t i = 0; i < here; ++i) {
          std::memcpy(out + (done + i) * m.columns + first,
                      &bytes[kAwqNibble[(n + i) % 8]], inputs);
        }
      }
      done += here;
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

bool HasGroupedGrids(const WeightMatrix& matrix) {
  const bool whole = matrix.group_size % kInt4GroupInputs == 0 ||
                     matrix.group_size >= matrix.columns;
  return matrix.bits == 4 && matrix.groups_in_order && whole;
}

void CopyGroupedRows(const WeightMatrix& matrix, int64_t row, int64_t count,
                     uint8_t* out) {
  if (matrix.encoding == WeightEncoding::kGptq) {
    return CopyGptq(matrix, row, count, out);
  }
  CopyAwq(matrix, row, count, out);
}

std::vector<Int4Grid> ReadGroupedGrids(const WeightMatrix& matrix, int64_t row,
                                       int64_t count) {
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
