// The left-hand side of a matrix product: one row per token, in the form that
// the dtype of the weights asks for. bf16 and MXFP4 weights take bfloat16; int8
// and int4 weights take int8 with one scale per row and group of 64.
//
// Write may be called by several threads for different places; nothing else may
// run at the same time as Reserve.
#pragma once

#include <cstdint>

#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/weight_dtype.h"

namespace baton::engine::cpu {

class Activations final {
 public:
  // Rows of `columns` values.
  Activations(WeightDtype weights, int32_t columns);

  // Makes room for `rows` rows; what was written is lost when there were fewer.
  void Reserve(int32_t rows);

  // Writes values [first_column, first_column + n) of a row. What is missing to
  // a whole group is written as zeros.
  // REQUIRES: first_column is a multiple of 64; the values up to the end of the
  // last group written are not wanted any more.
  void Write(const Kernels& kernels, int32_t row, int32_t first_column,
             const float* values, int32_t n);

  // Writes a whole row as another one of `from` is.
  // REQUIRES: `from` has the same columns and form.
  void CopyRow(const Activations& from, int32_t from_row, int32_t row);

  bool quantized() const { return quantized_; }
  int32_t columns() const { return columns_; }
  // Values between rows; a multiple of 64.
  int64_t stride() const { return stride_; }
  int64_t groups() const { return stride_ / kGroupInputs; }

  uint16_t* bf16(int32_t row) { return bf16_.data() + row * stride_; }
  const uint16_t* bf16(int32_t row) const {
    return bf16_.data() + row * stride_;
  }
  const int8_t* int8(int32_t row) const { return int8_.data() + row * stride_; }
  // [groups()] of a row.
  const float* scales(int32_t row) const {
    return scales_.data() + row * groups();
  }
  const int32_t* sums(int32_t row) const {
    return sums_.data() + row * groups();
  }

 private:
  const bool quantized_;
  const int32_t columns_;
  const int64_t stride_;
  AlignedBuffer<uint16_t> bf16_;
  AlignedBuffer<int8_t> int8_;
  AlignedBuffer<float> scales_;
  AlignedBuffer<int32_t> sums_;
};

}  // namespace baton::engine::cpu
