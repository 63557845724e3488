// What the kernels of matmul.h do with a finished sum. See there.
#pragma once

#include <cstdint>

#include "device_target.h"
#include "engine/cuda/matmul.h"

namespace baton::engine::cuda {

// Four sums of a thread, from and to the memory of a block.
BATON_DEVICE void LoadSums(const unsigned char* from, float* sums) {
  const Word4 words = Load16(from);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) sums[i] = BitsFloat(words.x[i]);
}
BATON_DEVICE void StoreSums(unsigned char* to, const float* sums) {
  Word4 words;
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) words.x[i] = FloatBits(sums[i]);
  Store16(to, words);
}

// x / (1 + e^-x) * up. e^-x overflows to infinity for x below -88, where the
// quotient is then zero.
BATON_DEVICE float Swiglu(float gate, float up) {
  constexpr float kLog2E = 1.4426950408889634f;
  const float e = Exp2(MulRn(gate, -kLog2E));
  return MulRn(DivRn(gate, AddRn(1.0f, e)), up);
}

// What a sum of products with weights as they are stored means: with the scale
// of its output and its bias.
BATON_DEVICE float Finished(const DeviceMatrix& w, int64_t output, float y) {
  if (w.scales != nullptr) y = MulRn(y, w.scales[output]);
  return w.bias == nullptr ? y : AddRn(y, w.bias[output]);
}

// One element of kStore or kAdd.
template <MatmulOutput kOutput>
BATON_DEVICE void PutElement(const MatmulArgs& args, int32_t row,
                             int64_t output, float y) {
  if (row >= args.rows || output >= args.w.outputs) return;
  float* const to = args.out + row * args.out_stride + output;
  const float value = Finished(args.w, output, y);
  *to = kOutput == MatmulOutput::kAdd ? AddRn(*to, value) : value;
}

// One element of kSwiglu: `gate_output` is that of the gate, in the first tile
// of a pair.
BATON_DEVICE void PutGated(const MatmulArgs& args, int32_t row,
                           int64_t gate_output, float gate, float up) {
  if (row >= args.rows) return;
  // Of the pairs, w.outputs / 2 elements are there; gate and up are padded
  // alike.
  const int64_t element = gate_output / (2 * kTileOutputs) * kTileOutputs +
                          gate_output % kTileOutputs;
  if (element >= args.w.outputs / 2) return;
  const float g = Finished(args.w, gate_output, gate);
  const float u = Finished(args.w, gate_output + kTileOutputs, up);
  args.gated[PlaceOfInput(args.gated_order, row, static_cast<int32_t>(element),
                          args.out_stride)] =
      static_cast<uint16_t>(PackBf16(Swiglu(g, u), 0.0f));
}

// The four elements that a lane holds of a tile of 16 outputs and 8 rows (d of
// Mma): outputs g and g + 8 of the tile, rows 2c and 2c + 1 of the 8.
template <MatmulOutput kOutput>
BATON_DEVICE void PutTile(const MatmulArgs& args, int64_t first_output,
                          int32_t first_row, const float (&y)[4]) {
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    PutElement<kOutput>(args, first_row + 2 * c + i % 2,
                        first_output + g + 8 * (i / 2), y[i]);
  }
}

// The same for a tile of the gate and the tile of up that follows it.
BATON_DEVICE void PutGatedTile(const MatmulArgs& args, int64_t first_output,
                               int32_t first_row, const float (&gate)[4],
                               const float (&up)[4]) {
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    PutGated(args, first_row + 2 * c + i % 2, first_output + g + 8 * (i / 2),
             gate[i], up[i]);
  }
}

}  // namespace baton::engine::cuda
