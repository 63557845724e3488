// How a weight matrix lies on the device: in the order in which the threads of
// a warp hold it for a product on tensor cores, so that it is read from memory
// in whole lines and needs no rearranging on the way.
//
// A matrix [outputs][inputs] is padded with zeros to whole tiles of 16 outputs
// and to a multiple of 64 inputs. Tiles lie one after another; a tile is its
// groups of 32 inputs one after another; a group is two steps of 16 inputs; a
// step is, for each of 32 lanes, four words of two bfloat16 values. With
// g = lane / 4 and c = lane % 4, the words of step s of a group hold
//
//   word 0, word 1   outputs g and g + 8, inputs 8c + 4s, 8c + 4s + 1
//   word 2, word 3   outputs g and g + 8, inputs 8c + 4s + 2, 8c + 4s + 3
//
// Which inputs a step has is ours to choose, as a sum over k does not care what
// k is called, so long as the other side calls it the same: a lane then reads
// the activations of both steps of a group, inputs 8c to 8c + 7, as 16 bytes.
//
// Plain functions for host and device, any thread.
#pragma once

#include <cstdint>

#include "engine/cuda/host_device.h"

namespace baton::engine::cuda {

inline constexpr int32_t kTileOutputs = 16;
inline constexpr int32_t kGroupInputs = 32;
inline constexpr int32_t kStepElements = 256;
inline constexpr int32_t kGroupElements = 2 * kStepElements;
// What inputs are padded to.
inline constexpr int32_t kInputPadding = 64;

BATON_HOST_DEVICE constexpr int32_t PaddedInputs(int32_t inputs) {
  return (inputs + kInputPadding - 1) / kInputPadding * kInputPadding;
}
BATON_HOST_DEVICE constexpr int32_t OutputTiles(int32_t outputs) {
  return (outputs + kTileOutputs - 1) / kTileOutputs;
}

// Where element (output, input) lies. `padded_inputs` is that of the matrix.
BATON_HOST_DEVICE constexpr int64_t WeightPlace(int64_t output, int32_t input,
                                                int32_t padded_inputs) {
  const int64_t group = output / kTileOutputs * (padded_inputs / kGroupInputs) +
                        input / kGroupInputs;
  const int32_t lane =
      static_cast<int32_t>(output % 8) * 4 + input % kGroupInputs / 8;
  const int32_t step = input % 8 / 4;
  const int32_t word =
      static_cast<int32_t>(output % kTileOutputs) / 8 + 2 * (input % 4 / 2);
  return group * kGroupElements + step * kStepElements + lane * 8 + word * 2 +
         input % 2;
}

}  // namespace baton::engine::cuda
