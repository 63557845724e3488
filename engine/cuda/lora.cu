// The kernels of lora.h.
#include "engine/cuda/lora.h"

#include "device_target.h"
#include "engine/cuda/heads.cuh"
#include "engine/cuda/matmul_output.cuh"
#include "engine/cuda/rounding.cuh"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;
static_assert(kWarps == kLoraRankUnit);

BATON_DEVICE float LowBf16(uint32_t word) { return BitsFloat(word << 16); }
BATON_DEVICE float HighBf16(uint32_t word) {
  return BitsFloat(word & 0xffff0000u);
}

// The tile's rows; those that are not there repeat the first.
BATON_DEVICE void ReadRows(const LoraRows& rows, const LoraTile& tile,
                           int32_t (&list)[kLoraRows]) {
  BATON_UNROLL
  for (int i = 0; i < kLoraRows; ++i) {
    list[i] = rows.list[tile.first + (i < tile.rows ? i : 0)];
  }
}

// A block has a tile's rows and eight elements of the rank of a part, one for
// each warp, whose lanes share the inputs out.
BATON_KERNEL(kThreads)
LoraNarrow(LoraNarrowArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const LoraTile tile = args.rows.tiles[BlockX()];
  if (tile.rows == 0) return;
  const int32_t units = args.rank / kLoraRankUnit;
  const int32_t part = BlockY() / units;
  const int32_t r = BlockY() % units * kLoraRankUnit + Thread() / 32;
  const LoraPart& entry = args.entries[tile.adapter].parts[part];
  if (entry.a == nullptr) return;
  int32_t list[kLoraRows];
  ReadRows(args.rows, tile, list);
  const uint32_t* const a = reinterpret_cast<const uint32_t*>(
      entry.a + int64_t{r} * args.padded_inputs);
  float sums[kLoraRows] = {};
  for (int32_t pair = Thread() % 32; pair < args.padded_inputs / 2;
       pair += 32) {
    const uint32_t weights = a[pair];
    BATON_UNROLL
    for (int i = 0; i < kLoraRows; ++i) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(
          args.x +
          PlaceOfInput(args.x_order, list[i], 2 * pair, args.x_stride));
      sums[i] = FmaRn(LowBf16(x), LowBf16(weights), sums[i]);
      sums[i] = FmaRn(HighBf16(x), HighBf16(weights), sums[i]);
    }
  }
  BATON_UNROLL
  for (int i = 0; i < kLoraRows; ++i) {
    const float sum = SumOfWarp(sums[i]);
    if (Thread() % 32 != 0 || i >= tile.rows) continue;
    args.narrow[(int64_t{list[i]} * kLoraParts + part) * args.rank + r] =
        ToBf16(MulRn(sum, entry.scale));
  }
}

// A block has a tile's rows and 256 outputs, one for each thread.
BATON_KERNEL(kThreads)
LoraWide(LoraWideArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const LoraTile tile = args.rows.tiles[BlockX()];
  if (tile.rows == 0) return;
  int32_t output = BlockY() * Threads() + Thread();
  int32_t part = 0;
  while (part < args.parts && output >= args.outputs[part]) {
    output -= args.outputs[part++];
  }
  if (part == args.parts) return;
  const LoraPart& entry = args.entries[tile.adapter].parts[part];
  if (entry.b == nullptr) return;
  int32_t list[kLoraRows];
  ReadRows(args.rows, tile, list);
  const uint32_t* const b =
      reinterpret_cast<const uint32_t*>(entry.b + int64_t{output} * args.rank);
  float sums[kLoraRows] = {};
  for (int32_t pair = 0; pair < args.rank / 2; ++pair) {
    const uint32_t weights = b[pair];
    BATON_UNROLL
    for (int i = 0; i < kLoraRows; ++i) {
      const uint32_t x = *reinterpret_cast<const uint32_t*>(
          args.narrow + (int64_t{list[i]} * kLoraParts + part) * args.rank +
          2 * pair);
      sums[i] = FmaRn(LowBf16(x), LowBf16(weights), sums[i]);
      sums[i] = FmaRn(HighBf16(x), HighBf16(weights), sums[i]);
    }
  }
  const int32_t column =
      args.in_turns ? (output / kTileOutputs * 2 + part) * kTileOutputs +
                          output % kTileOutputs
                    : args.columns[part] + output;
  BATON_UNROLL
  for (int i = 0; i < kLoraRows; ++i) {
    const int32_t row = list[i];
    if (i >= tile.rows || row < args.first_row || row >= args.end_row) continue;
    float* const out =
        args.out + int64_t{row - args.first_row} * args.out_stride + column;
    *out = AddRn(*out, sums[i]);
  }
}

BATON_KERNEL(kThreads)
Swiglu(SwigluArgs args) {
  AwaitEarlierKernels();
  LetNextKernelBegin();
  const float* const from = args.from + int64_t{BlockX()} * args.from_stride;
  const int32_t row = args.first_row + BlockX();
  for (int32_t first = 4 * Thread(); first < args.elements;
       first += 4 * Threads()) {
    // Four elements of a tile; of padding there are products, too.
    const float* const gates =
        from + first / kTileOutputs * 2 * kTileOutputs + first % kTileOutputs;
    float gate[4];
    float up[4];
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      gate[i] = gates[i];
      up[i] = gates[kTileOutputs + i];
    }
    float gated[4];
    Gate4(gate, up, /*limit=*/0.0f, args.gelu, gated);
    BATON_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (first + i >= args.elements) continue;
      args.to[PlaceOfInput(args.to_order, row, first + i, args.to_stride)] =
          ToBf16(gated[i]);
    }
  }
}

LaunchShape ShapeOf(int32_t x, int32_t y) {
  LaunchShape shape;
  shape.x = static_cast<uint32_t>(x);
  shape.y = static_cast<uint32_t>(y);
  shape.threads = kThreads;
  return shape;
}

}  // namespace

void RunLoraNarrow(const LoraNarrowArgs& args, StreamHandle* stream) {
  const int32_t units = args.rank / kLoraRankUnit;
  Launch(LoraNarrow, "lora narrow",
         ShapeOf(args.rows.num_tiles, args.parts * units), stream, args);
}

void RunLoraWide(const LoraWideArgs& args, StreamHandle* stream) {
  int32_t outputs = 0;
  for (int32_t part = 0; part < args.parts; ++part) {
    outputs += args.outputs[part];
  }
  constexpr auto kPerBlock = static_cast<int32_t>(kThreads);
  Launch(LoraWide, "lora wide",
         ShapeOf(args.rows.num_tiles, (outputs + kPerBlock - 1) / kPerBlock),
         stream, args);
}

void RunSwiglu(const SwigluArgs& args, StreamHandle* stream) {
  Launch(Swiglu, "swiglu", ShapeOf(args.rows, 1), stream, args);
}

}  // namespace baton::engine::cuda
