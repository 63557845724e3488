// How a weight matrix lies on the device: in the order in which the threads of
// a warp hold it for a product on tensor cores, so that it is read from memory
// in whole lines, 16 bytes a lane, and needs no rearranging on the way.
//
// A matrix [outputs][inputs] is padded with zeros to whole tiles of 16 outputs
// and to a multiple of 64 inputs. Tiles lie one after another; a tile is its
// slices of 64 inputs one after another; a slice is four steps of 16 inputs:
// what one product on tensor cores takes. Of a step, each of 32 lanes holds
// four words of two values. With g = lane / 4 and c = lane % 4, the words of
// steps 2h and 2h + 1 (half h of a slice, 32 inputs) hold, for s = step % 2,
//
//   word 0, word 1   outputs g and g + 8, inputs 32h + 8c + 4s + 0, + 1
//   word 2, word 3   outputs g and g + 8, inputs 32h + 8c + 4s + 2, + 3
//
// Which inputs a step has is ours to choose, as a sum over k does not care what
// k is called, so long as the other side calls it the same: a lane then reads
// the activations of both steps of a half, inputs 8c to 8c + 7, as 16 bytes.
//
// A slice is stored in pieces of 16 bytes a lane, 512 bytes each. What a piece
// holds, and how, depends on the format:
//
//   bf16        4 pieces, a step each: four words of two bfloat16.
//   fp8, int8   2 pieces, two steps each, 8 bytes a step: the two values of
//               word i are bytes i % 2 and i % 2 + 2 of 4-byte word i / 2. int8
//               as it is; fp8 as e4m3.
//   int4        1 piece, four steps, 4 bytes each: the two values of word i are
//               half-bytes i and i + 4. The slice closes with 32 bytes more,
//               16 bits (engine/int4_grid.h) for each of its outputs: g, then
//               g + 8, for each g.
//
// A weight is what is stored, times the scale of its output. int4 is what is
// stored, less the zero of its output and slice, times their scale, times the
// scale of its output.
//
// Plain functions for host and device, any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/cuda/host_device.h"

namespace baton::engine::cuda {

enum class WeightFormat : int32_t { kBf16, kFp8, kInt8, kInt4 };

inline constexpr int32_t kTileOutputs = 16;
// What inputs are padded to.
inline constexpr int32_t kInputPadding = 64;
inline constexpr int32_t kSliceInputs = kInputPadding;
inline constexpr int32_t kSliceElements = kTileOutputs * kSliceInputs;
inline constexpr int32_t kPieceBytes = 32 * 16;

BATON_HOST_DEVICE constexpr int32_t PaddedInputs(int32_t inputs) {
  return (inputs + kInputPadding - 1) / kInputPadding * kInputPadding;
}
BATON_HOST_DEVICE constexpr int32_t OutputTiles(int32_t outputs) {
  return (outputs + kTileOutputs - 1) / kTileOutputs;
}

BATON_HOST_DEVICE constexpr int32_t WeightBits(WeightFormat format) {
  return format == WeightFormat::kBf16   ? 16
         : format == WeightFormat::kInt4 ? 4
                                         : 8;
}
// One scale per output, in an array of their own.
BATON_HOST_DEVICE constexpr bool HasOutputScales(WeightFormat format) {
  return format != WeightFormat::kBf16;
}
// A zero and a scale per output and slice, in the slice.
BATON_HOST_DEVICE constexpr bool HasSliceGrids(WeightFormat format) {
  return format == WeightFormat::kInt4;
}

BATON_HOST_DEVICE constexpr int32_t SlicePieces(WeightFormat format) {
  return kSliceElements * WeightBits(format) / 8 / kPieceBytes;
}
// Of a slice of a tile, with its grids; a multiple of 32.
BATON_HOST_DEVICE constexpr int32_t SliceBytes(WeightFormat format) {
  return SlicePieces(format) * kPieceBytes +
         (HasSliceGrids(format) ? kTileOutputs * 2 : 0);
}
BATON_HOST_DEVICE constexpr int64_t TileBytes(WeightFormat format,
                                              int32_t padded_inputs) {
  return int64_t{padded_inputs} / kSliceInputs * SliceBytes(format);
}

// Where the inputs of a row of activations lie in memory.
enum class InputOrder : int32_t {
  // Rows one after another.
  kNatural,
  // As tensor cores that read the block's memory by themselves (GroupMma) want
  // it there, so that one instruction copies it: 128 rows at a time, of these
  // slice after slice, of a slice row after row, of a row the four steps' 16
  // inputs in the order of tensor cores' k. A row's eight pieces of 16 bytes
  // change places with its number (PTX's swizzle of 128 bytes). Who writes
  // activations puts them there. For rows whose inputs are not padded.
  kStaged,
};

inline constexpr int32_t kStagedRows = 128;

// Rows that there is to be memory for.
BATON_HOST_DEVICE constexpr int64_t StagedRows(int64_t rows) {
  return (rows + kStagedRows - 1) / kStagedRows * kStagedRows;
}

// In elements. `stride` is that of rows; if staged, how many inputs they have,
// a multiple of 64.
BATON_HOST_DEVICE constexpr int64_t PlaceOfInput(InputOrder order, int64_t row,
                                                 int32_t input,
                                                 int64_t stride) {
  if (order == InputOrder::kNatural) return row * stride + input;
  // Of step * 2 + k / 8 and k % 8, in which kernels have few bits to move.
  const auto in = static_cast<uint32_t>(input);
  const auto of = static_cast<uint32_t>(row);
  const uint32_t piece = ((in >> 5 & 1) * 4 + (in >> 1 & 3)) ^ (of & 7);
  const int64_t slice =
      int64_t{of / kStagedRows} * static_cast<uint32_t>(stride / kSliceInputs) +
      in / kSliceInputs;
  return slice * (kStagedRows * kSliceInputs) +
         (of % kStagedRows * kSliceInputs + piece * 8 + (in >> 3 & 3) * 2 +
          (in & 1));
}

// Where in the tiles a weight is stored.
struct WeightPlace {
  int64_t byte = 0;   // its first
  int32_t shift = 0;  // of its bits in that, for int4
};

BATON_HOST_DEVICE constexpr int64_t SlicePlace(WeightFormat format,
                                               int64_t output, int32_t input,
                                               int32_t padded_inputs) {
  return output / kTileOutputs * TileBytes(format, padded_inputs) +
         int64_t{input / kSliceInputs} * SliceBytes(format);
}

// `padded_inputs` is that of the matrix.
BATON_HOST_DEVICE constexpr WeightPlace PlaceOfWeight(WeightFormat format,
                                                      int64_t output,
                                                      int32_t input,
                                                      int32_t padded_inputs) {
  const int32_t lane = static_cast<int32_t>(output % 8) * 4 + input % 32 / 8;
  const int32_t step = input % kSliceInputs / 32 * 2 + input % 8 / 4;
  const int32_t word =
      static_cast<int32_t>(output % kTileOutputs) / 8 + 2 * (input % 4 / 2);
  const int32_t half = input % 2;  // of the word
  // Steps of a piece, and bytes of a lane for each.
  const int32_t steps = 4 / SlicePieces(format);
  const int32_t in_piece = lane * 16 + step % steps * (16 / steps);
  const int64_t piece = SlicePlace(format, output, input, padded_inputs) +
                        step / steps * kPieceBytes + in_piece;
  switch (format) {
    case WeightFormat::kBf16:
      return {piece + word * 4 + half * 2, 0};
    case WeightFormat::kFp8:
    case WeightFormat::kInt8:
      return {piece + word / 2 * 4 + word % 2 + half * 2, 0};
    case WeightFormat::kInt4:
      return {piece + (word + half * 4) / 2, word % 2 * 4};
  }
  return {};
}

// Where the grid of an output and slice lies in the tiles: int4.
BATON_HOST_DEVICE constexpr int64_t PlaceOfSliceGrid(WeightFormat format,
                                                     int64_t output,
                                                     int32_t input,
                                                     int32_t padded_inputs) {
  const int32_t in_tile = static_cast<int32_t>(output % kTileOutputs);
  return SlicePlace(format, output, input, padded_inputs) +
         SlicePieces(format) * kPieceBytes +
         (in_tile % 8 * 2 + in_tile / 8) * 2;
}

namespace weight_tiles_internal {

BATON_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  float value = 0.0f;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
BATON_HOST_DEVICE inline uint32_t HalfAt(const std::byte* at) {
  uint16_t bits = 0;
  memcpy(&bits, at, sizeof(bits));
  return bits;
}

}  // namespace weight_tiles_internal

// Of a grid, without that of the output (engine/int4_grid.h).
BATON_HOST_DEVICE inline float SliceScale(uint32_t grid) {
  return weight_tiles_internal::FloatOf((grid << 12 & 0x0fff0000u) | 96u << 23);
}

// A weight in float32, its scale included. `output_scales` is that of the
// matrix, null where the format has none.
BATON_HOST_DEVICE inline float ReadWeight(WeightFormat format,
                                          const std::byte* tiles,
                                          const float* output_scales,
                                          int64_t output, int32_t input,
                                          int32_t padded_inputs) {
  using weight_tiles_internal::FloatOf;
  using weight_tiles_internal::HalfAt;
  const WeightPlace place = PlaceOfWeight(format, output, input, padded_inputs);
  const std::byte* const at = tiles + place.byte;
  const auto byte = static_cast<uint32_t>(*at);
  switch (format) {
    case WeightFormat::kBf16:
      return FloatOf(HalfAt(at) << 16);
    case WeightFormat::kFp8:
      // The exponent's bias is 120 more in a float32; exact.
      return FloatOf((byte & 0x80) << 24 | (byte & 0x7f) << 20) * 0x1p120f *
             output_scales[output];
    case WeightFormat::kInt8:
      return static_cast<float>(static_cast<int8_t>(byte)) *
             output_scales[output];
    case WeightFormat::kInt4: {
      const uint32_t grid = HalfAt(
          tiles + PlaceOfSliceGrid(format, output, input, padded_inputs));
      return static_cast<float>(static_cast<int32_t>(byte >> place.shift & 15) -
                                static_cast<int32_t>(grid & 15)) *
             SliceScale(grid) * output_scales[output];
    }
  }
  return 0.0f;
}

}  // namespace baton::engine::cuda
