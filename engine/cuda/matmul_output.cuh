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

// x / (1 + e^-x) * up, of four. e^-x overflows to infinity for x below -88,
// where the quotient is then zero.
BATON_DEVICE void Swiglu4(const float (&gate)[4], const float (&up)[4],
                          float (&gated)[4]) {
  constexpr float kLog2E = 1.4426950408889634f;
  float divisors[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    divisors[i] = AddRn(1.0f, Exp2(MulRn(gate[i], -kLog2E)));
  }
  float quotients[4];
  DivRn4(gate, divisors, quotients);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) gated[i] = MulRn(quotients[i], up[i]);
}

// The same with GELU, as Activation::kGeluTanh says (model_config.h).
BATON_DEVICE void Geglu4(const float (&gate)[4], const float (&up)[4],
                         float (&gated)[4]) {
  // -2 sqrt(2 / pi) log2(e), and that times 0.044715.
  constexpr float kSlope = -2.3022081988f;
  constexpr float kCubicSlope = -0.1029432396f;
  float divisors[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float slope = FmaRn(MulRn(gate[i], gate[i]), kCubicSlope, kSlope);
    divisors[i] = AddRn(1.0f, Exp2(MulRn(gate[i], slope)));
  }
  float quotients[4];
  DivRn4(gate, divisors, quotients);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) gated[i] = MulRn(quotients[i], up[i]);
}

// The same within a limit, as ExpertsConfig says (model_config.h); with 0,
// one of those.
BATON_DEVICE void Gate4(const float (&gate)[4], const float (&up)[4],
                        float limit, bool gelu, float (&gated)[4]) {
  if (gelu) return Geglu4(gate, up, gated);
  if (limit == 0.0f) return Swiglu4(gate, up, gated);
  constexpr float kLog2E = 1.4426950408889634f;
  constexpr float kSteepness = 1.702f;
  float gates[4];
  float divisors[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    gates[i] = gate[i] > limit ? limit : gate[i];
    divisors[i] = AddRn(1.0f, Exp2(MulRn(gates[i], -kSteepness * kLog2E)));
  }
  float quotients[4];
  DivRn4(gates, divisors, quotients);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float most = up[i] > limit ? limit : up[i];
    gated[i] = MulRn(quotients[i], AddRn(most < -limit ? -limit : most, 1.0f));
  }
}

// What a thread needs besides its four sums of a tile of 16 outputs and 8 rows
// (d of Mma: outputs g and g + 8 of the tile, rows 2c and 2c + 1 of the 8), all
// asked for at once: the compiler, which does not know that outputs are nothing
// else's, would ask for each behind the store before it, and wait for the
// memory four times.
template <MatmulOutput kOutput>
struct TileTarget {
  float before[4];  // what kAdd adds to
  // Of outputs g and g + 8, where the matrix has them.
  float scales[2];
  float bias[2];
};

// But for what is there before.
template <MatmulOutput kOutput>
BATON_DEVICE TileTarget<kOutput> ReadFactors(const MatmulArgs& args,
                                             int64_t first_output) {
  TileTarget<kOutput> target;
  // Of padding there are some, too, but of no tile that is not there.
  const bool there = first_output < int64_t{args.w.output_tiles} * kTileOutputs;
  BATON_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int64_t output = first_output + Thread() % 32 / 4 + 8 * half;
    target.scales[half] =
        args.w.scales != nullptr && there ? args.w.scales[output] : 1.0f;
    target.bias[half] =
        args.w.bias != nullptr && there ? args.w.bias[output] : 0.0f;
  }
  return target;
}

template <MatmulOutput kOutput>
BATON_DEVICE TileTarget<kOutput> ReadTarget(const MatmulArgs& args,
                                            int64_t first_output,
                                            int32_t first_row) {
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  TileTarget<kOutput> target = ReadFactors<kOutput>(args, first_output);
  if constexpr (kOutput == MatmulOutput::kAdd) {
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int32_t row = first_row + 2 * c + i % 2;
      const int64_t output = first_output + g + 8 * (i / 2);
      target.before[i] = row < args.rows && output < args.w.outputs
                             ? args.out[row * args.out_stride + output]
                             : 0.0f;
    }
  }
  return target;
}

// What a sum of products with weights as they are stored means: with the scale
// of its output and its bias.
template <MatmulOutput kOutput>
BATON_DEVICE float Finished(const DeviceMatrix& w,
                            const TileTarget<kOutput>& target, int half,
                            float y) {
  if (w.scales != nullptr) y = MulRn(y, target.scales[half]);
  return w.bias == nullptr ? y : AddRn(y, target.bias[half]);
}

// The four elements that a lane holds of a tile, of kStore or kAdd.
template <MatmulOutput kOutput>
BATON_DEVICE void PutTile(const MatmulArgs& args, int64_t first_output,
                          int32_t first_row, const TileTarget<kOutput>& target,
                          const float (&y)[4]) {
  static_assert(kOutput != MatmulOutput::kSwiglu);
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int32_t row = first_row + 2 * c + i % 2;
    const int64_t output = first_output + g + 8 * (i / 2);
    if (row >= args.rows || output >= args.w.outputs) continue;
    const float value = Finished(args.w, target, i / 2, y[i]);
    args.out[row * args.out_stride + output] =
        kOutput == MatmulOutput::kAdd ? AddRn(target.before[i], value) : value;
  }
}

// The same of kSwiglu, for a tile of the gate and the tile of up that follows
// it.
using GatedTarget = TileTarget<MatmulOutput::kSwiglu>;
BATON_DEVICE void PutGatedTile(const MatmulArgs& args, int64_t first_output,
                               int32_t first_row, const GatedTarget& of_gate,
                               const GatedTarget& of_up, const float (&gate)[4],
                               const float (&up)[4]) {
  const int32_t g = Thread() % 32 / 4;
  const int32_t c = Thread() % 4;
  float finished_gate[4];
  float finished_up[4];
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    finished_gate[i] = Finished(args.w, of_gate, i / 2, gate[i]);
    finished_up[i] = Finished(args.w, of_up, i / 2, up[i]);
  }
  float gated[4];
  Gate4(finished_gate, finished_up, args.swiglu_limit, args.gelu, gated);
  BATON_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int32_t row = first_row + 2 * c + i % 2;
    // Of the pairs of tiles, w.outputs / 2 elements are there; gate and up are
    // padded alike.
    const int64_t element =
        first_output / (2 * kTileOutputs) * kTileOutputs + g + 8 * (i / 2);
    if (row >= args.rows || element >= args.w.outputs / 2) continue;
    args.gated[PlaceOfInput(args.gated_order, row,
                            static_cast<int32_t>(element), args.out_stride)] =
        static_cast<uint16_t>(PackBf16(gated[i], 0.0f));
  }
}

}  // namespace baton::engine::cuda
