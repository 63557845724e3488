// How a matrix lies in memory that `baton quantize` and the CPU backend pack
// into: in panels of 16 outputs. unit() neighbouring panels lie interleaved:
// step s (2, 4 or 8 inputs of 16, 8 or 4 bits) of panel p is the 64 bytes at
//   ((p / unit) * steps + s) * unit * 64 + (p % unit) * 64,
// one stream for who reads a unit from end to end. What a step holds, for each
// of the outputs:
//   16 bits  two bfloat16;
//   8 bits   four weights of [-128, 127], each stored as a byte, plus 128;
//   4 bits   eight, whose first four are the low halves of bytes;
//   MXFP4    eight, in a word of 32 bits: input 2 i is the 4 bits from 4 i on,
//            input 2 i + 1 those from 16 + 4 i on (mxfp4.h).
// Scales lie apart: a float32 for each output (8 and 4 bits); then, of 4 bits,
// the grids (int4_grid.h) of 64 inputs each, [panels / unit][groups][unit][16].
// MXFP4 has bytes alone, the exponents of 32 inputs each, in the same order.
//
// Plain values, any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/int4_grid.h"
#include "engine/mxfp4.h"

namespace baton::engine {

struct PackedLayout {
  static constexpr int32_t kPanelOutputs = 16;
  static constexpr int64_t kStepBytes = 64;

  int32_t bits = 16;  // 16, 8 or 4
  int32_t inputs = 0;
  int32_t panels = 0;  // a multiple of `unit`
  int32_t unit = 1;
  bool mxfp4 = false;  // with 4 bits; inputs are a multiple of 32

  // Of 64 inputs, the last one padded.
  int32_t groups() const {
    return (inputs + kInt4GroupInputs - 1) / kInt4GroupInputs;
  }
  int32_t outputs() const { return panels * kPanelOutputs; }
  // MXFP4: of 32 inputs.
  int32_t exponents() const {
    return inputs / static_cast<int32_t>(kMxfp4Group);
  }
  // Steps of a panel. Of 8 and 4 bits inputs are padded to whole groups.
  int64_t steps() const {
    if (mxfp4) return inputs / 8;
    const int64_t padded = int64_t{groups()} * kInt4GroupInputs;
    return bits == 16 ? (int64_t{inputs} + 1) / 2 : padded * bits / 32;
  }
  // Bytes between the steps of a panel.
  int64_t step_stride() const { return unit * kStepBytes; }
  int64_t data_bytes() const { return panels * steps() * kStepBytes; }

  int64_t column_scale_bytes() const {
    return bits == 16 || mxfp4 ? 0 : outputs() * int64_t{sizeof(float)};
  }
  // Grids, or exponents, of a panel, of one group and the next.
  int64_t grid_stride() const { return int64_t{unit} * kPanelOutputs; }
  int64_t scale_bytes() const {
    if (mxfp4) return int64_t{outputs()} * exponents();
    const int64_t grids =
        bits == 4 ? int64_t{outputs()} * groups() * int64_t{sizeof(uint16_t)}
                  : 0;
    return column_scale_bytes() + grids;
  }

  // Of the weights: a panel's first step.
  int64_t PanelOffset(int32_t panel) const {
    return panel / unit * steps() * step_stride() + panel % unit * kStepBytes;
  }
  // Of the scales, in bytes.
  int64_t ColumnScaleOffset(int32_t panel) const {
    return panel * int64_t{kPanelOutputs * sizeof(float)};
  }
  // The grids of a panel's first group.
  int64_t GridOffset(int32_t panel) const {
    return column_scale_bytes() + (panel / unit * groups() * grid_stride() +
                                   panel % unit * kPanelOutputs) *
                                      int64_t{sizeof(uint16_t)};
  }
  // The exponents of a panel's first group.
  int64_t ExponentOffset(int32_t panel) const {
    return panel / unit * exponents() * grid_stride() +
           panel % unit * kPanelOutputs;
  }
};

}  // namespace baton::engine
