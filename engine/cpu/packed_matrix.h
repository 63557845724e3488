// A weight matrix as the matrix product reads it: bfloat16, in panels of 16
// outputs (kernels.h). Packed once at load, serves prefill and decode alike.
//
// Written by one thread during load, then constant and readable from any
// thread.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "engine/cpu/aligned_buffer.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/thread_team.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cpu {

class PackedMatrix final {
 public:
  PackedMatrix() = default;

  // Packs matrices [outputs_i, inputs] one below the other, each starting at a
  // new panel (outputs are padded with zeros to a multiple of 16). Values are
  // rounded to bfloat16.
  // REQUIRES: parts non-empty, of equal `inputs`.
  static PackedMatrix Pack(absl::Span<const WeightMatrix* const> parts,
                           ThreadTeam& team);

  int32_t inputs() const { return inputs_; }
  // Pairs of inputs, the last one padded with zero when inputs() is odd.
  int32_t input_pairs() const { return (inputs_ + 1) / 2; }
  // Of all parts, padding included: a multiple of 16.
  int32_t outputs() const { return panels_ * kPanelColumns; }
  int32_t panels() const { return panels_; }
  // Elements of one panel.
  int64_t panel_stride() const {
    return int64_t{input_pairs()} * kPanelPairElements;
  }
  const uint16_t* panel(int32_t index) const {
    return data_.data() + index * panel_stride();
  }

  // Writes the inputs() weights of one output as floats: how a tied embedding
  // is looked up.
  void ReadOutput(int32_t output, float* weights) const;

 private:
  int32_t inputs_ = 0;
  int32_t panels_ = 0;
  AlignedBuffer<uint16_t> data_;
};

}  // namespace baton::engine::cpu
