// A weight matrix as the matrix product reads it: in panels of 16 outputs, in
// bfloat16, MXFP4 or quantized (kernels.h), as packed_layout.h says. Packed
// once at load, or mapped from a file that holds it packed; serves prefill and
// decode alike.
//
// Written by one thread during load, then constant and readable from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_team.h"
#include "engine/cpu/weight_dtype.h"
#include "engine/packed_layout.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cpu {

// Where the outputs of a panel come from: rows [first_row, first_row + rows) of
// `part`, 0 <= rows <= 16; outputs beyond are zero.
struct PanelSource {
  const WeightMatrix* part = nullptr;
  int64_t first_row = 0;
  int32_t rows = 0;
};

// Appends the panels of rows [first, first + count) of `part`, filled up with
// zero panels to a multiple of `unit`.
void AppendPanels(const WeightMatrix& part, int64_t first, int64_t count,
                  int32_t unit, std::vector<PanelSource>* panels);

// What a packed matrix takes, in bytes.
struct PackedSize {
  int64_t data = 0;  // a multiple of 64
  // int8, int4: float32 per output; then, int4, 16 bits per output and group.
  // MXFP4: a byte per output and 32 inputs.
  int64_t scales = 0;
};

// What is known of a packed matrix before its weights are.
struct PackedShape {
  WeightDtype dtype = WeightDtype::kBf16;
  int32_t unit = 1;
  int32_t inputs = 0;
  int32_t panels = 0;  // a multiple of `unit`

  PackedLayout layout() const;
  PackedSize size() const;
};

// A view: the memory belongs to who loaded the model.
class PackedMatrix final {
 public:
  PackedMatrix() = default;

  // REQUIRES: the spans are as large as shape.size() says, `data` is aligned to
  // 64 bytes, `scales` to 4.
  PackedMatrix(const PackedShape& shape, absl::Span<const std::byte> data,
               absl::Span<const std::byte> scales);

  // Packs into `data` and `scales`, which are zero.
  // REQUIRES: as the constructor; shape.panels sources of shape.inputs columns;
  // for MXFP4, HasMxfp4 of their parts.
  static PackedMatrix Pack(const PackedShape& shape,
                           absl::Span<const PanelSource> sources,
                           absl::Span<std::byte> data,
                           absl::Span<std::byte> scales, ThreadTeam& team);

  WeightDtype dtype() const { return dtype_; }
  const PackedLayout& layout() const { return layout_; }
  int32_t inputs() const { return layout_.inputs; }
  // Pairs of inputs, the last one padded with zero when inputs() is odd.
  int32_t input_pairs() const { return (inputs() + 1) / 2; }
  // Groups of inputs, the last one padded with zeros.
  int32_t groups() const { return layout_.groups(); }
  // Padding included: a multiple of 16.
  int32_t outputs() const { return layout_.outputs(); }
  int32_t panels() const { return layout_.panels; }
  int32_t unit() const { return layout_.unit; }
  // Steps of a panel: pairs of inputs, or runs of 4 or 8.
  int64_t steps() const { return layout_.steps(); }
  static constexpr int64_t kStepBytes = PackedLayout::kStepBytes;
  // Bytes between the steps of a panel.
  int64_t step_stride() const { return layout_.step_stride(); }
  // Bytes that a product reads: the packed weights and their scales.
  int64_t bytes() const { return data_.size() + scales_.size(); }

  // Step 0 of a panel.
  const std::byte* panel(int32_t index) const {
    return data_.data() + layout_.PanelOffset(index);
  }
  // int8, int4: one per output.
  const float* column_scales(int32_t panel) const {
    return reinterpret_cast<const float*>(scales_.data() +
                                          layout_.ColumnScaleOffset(panel));
  }
  // int4: the 16 grids (engine/int4_grid.h) of a panel's first group; those of
  // its next group lie group_code_stride() further.
  const uint16_t* group_codes(int32_t panel) const {
    return reinterpret_cast<const uint16_t*>(scales_.data() +
                                             layout_.GridOffset(panel));
  }
  int64_t group_code_stride() const { return layout_.grid_stride(); }
  // MXFP4: the 16 exponents of a panel's first 32 inputs; those of its next
  // ones lie exponent_stride() further.
  const uint8_t* exponents(int32_t panel) const {
    return reinterpret_cast<const uint8_t*>(scales_.data() +
                                            layout_.ExponentOffset(panel));
  }
  int64_t exponent_stride() const { return layout_.grid_stride(); }

  absl::Span<const std::byte> data() const { return data_; }
  absl::Span<const std::byte> scales() const { return scales_; }

  // Writes the inputs() weights of one output as floats: how a tied embedding
  // is looked up.
  void ReadOutput(int32_t output, float* weights) const;

 private:
  WeightDtype dtype_ = WeightDtype::kBf16;
  PackedLayout layout_;
  absl::Span<const std::byte> data_;
  absl::Span<const std::byte> scales_;
};

}  // namespace baton::engine::cpu
