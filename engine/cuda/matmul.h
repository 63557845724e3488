// The product of a step's activations with a weight matrix, on the device:
// y[row][output] = sum over inputs of x[row][input] * w[output][input].
//
// Same answer everywhere: an element of y is one sum in one order, whatever the
// number of rows. Inputs are cut into at most eight chunks (ChunkSlices).
// Within a chunk the tensor cores add 16 inputs at a time, in order, to a
// float32; the chunks' sums are added in order in float32. Weights of 8 bits
// enter as they are stored, and the total is multiplied with the scale of its
// output. Weights of 4 bits enter less the zero of their 64 inputs, and have a
// scale for these, too: they are summed from zero, and joined with the chunk's
// sum in one operation that rounds once, sum += scale * part. The kernels
// differ in how they share this work out (which warp runs which chunk, what
// lies in the block's memory), never in the order. PlanMatmul picks one by the
// number of rows.
//
// Pure host code but for RunMatmul, which gives the kernel to a stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cuda/device_runtime.h"
#include "engine/cuda/launch_shape.h"
#include "engine/cuda/matmul_flow.h"
#include "engine/cuda/matmul_wide.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {

// Chunks of inputs, which are summed apart: so many at most, so that eight
// warps or blocks share any sum out, and few sums travel between them.
inline constexpr int32_t kMaxChunks = 8;
// Of a block of kStream8 and kStream16: a warp for each chunk.
inline constexpr int32_t kStreamThreads = 32 * kMaxChunks;
// 512 inputs.
inline constexpr int32_t kMinChunkSlices = 8;

// Slices of 64 inputs of a chunk; even, and fewer in the last one.
BATON_HOST_DEVICE constexpr int32_t ChunkSlices(int32_t padded_inputs) {
  const int32_t pairs =
      padded_inputs / (2 * kSliceInputs) + padded_inputs / kSliceInputs % 2;
  const int32_t slices = (pairs + kMaxChunks - 1) / kMaxChunks * 2;
  return slices < kMinChunkSlices ? kMinChunkSlices : slices;
}

BATON_HOST_DEVICE constexpr int32_t Chunks(int32_t padded_inputs) {
  const int32_t slices = padded_inputs / kSliceInputs;
  const int32_t chunk = ChunkSlices(padded_inputs);
  return (slices + chunk - 1) / chunk;
}

// Chunks whose sums a block may have to keep apart, where blocks of a cluster
// share inputs out.
inline constexpr int32_t kKeptChunks = 2;

// What becomes of the product.
enum class MatmulOutput {
  // out[row][output] = y + bias, float32.
  kStore,
  // out[row][output] += y + bias, float32: the residual stream.
  kAdd,
  // The outputs come in pairs of tiles, 16 of the gate and 16 of the up matrix:
  // gated[row][i] = silu(gate + bias) * (up + bias), bfloat16; or within
  // MatmulArgs::swiglu_limit, or with its gelu.
  kSwiglu,
};

// Device memory; constant after loading.
struct DeviceMatrix {
  const std::byte* tiles = nullptr;  // weight_tiles.h
  WeightFormat format = WeightFormat::kBf16;
  int32_t outputs = 0;  // those that exist
  int32_t inputs = 0;
  int32_t output_tiles = 0;
  int32_t padded_inputs = 0;
  // One per output, padding included; null when there is none.
  const float* scales = nullptr;
  const float* bias = nullptr;

  // Of the tiles.
  int64_t tile_bytes() const {
    return output_tiles * TileBytes(format, padded_inputs);
  }
  // With the scales: what a product reads.
  int64_t bytes() const {
    return tile_bytes() + (HasOutputScales(format)
                               ? int64_t{output_tiles} * kTileOutputs * 4
                               : 0);
  }
};

struct MatmulArgs {
  DeviceMatrix w;
  // bfloat16 [rows][x_stride], or staged, StagedRows(rows) of them; x_stride is
  // at least w.padded_inputs and a multiple of 8; what pads the inputs is
  // finite.
  const uint16_t* x = nullptr;
  int64_t x_stride = 0;
  // kStaged, for which there is no padding, goes with kGroup and kFlow alone,
  // and these with nothing else.
  InputOrder x_order = InputOrder::kNatural;
  int32_t rows = 0;
  // float32, for kStore and kAdd.
  float* out = nullptr;
  // bfloat16, for kSwiglu.
  uint16_t* gated = nullptr;
  InputOrder gated_order = InputOrder::kNatural;
  float swiglu_limit = 0;  // as ExpertsConfig has it (model_config.h)
  bool gelu = false;       // Activation::kGeluTanh; without a limit
  int64_t out_stride = 0;  // elements
};

enum class MatmulKernel {
  kStream8,   // up to 8 rows; weights go from memory to registers
  kStream16,  // up to 16 rows
  kTile64,    // 64 outputs x 64 rows a block
  kTile128,   // 128 outputs x 128 rows a block
  // 256 outputs, or 128, x up to 64 rows a block, and inputs shared out among a
  // cluster of blocks where outputs are few (matmul_wide.cuh).
  kWide,
  // 128 outputs x 256 rows a block, or 128 rows, on tensor cores of Hopper,
  // with activations that two blocks share (matmul_group.cuh): takes staged
  // inputs.
  kGroup,
  // Up to 256 outputs x 64 rows a block, on tensor cores of Hopper, with
  // weights and activations on their way through the block's memory, and inputs
  // shared out where outputs are few (matmul_flow.cuh): takes staged inputs.
  kFlow,
};

// Kernels that not all devices have, nor all builds: whether they may be used.
struct DeviceKernels {
  bool group = false;
  bool wide = false;
  bool flow = false;
  bool group_attention = false;  // attention_group.h
};

// Rows from which large tiles are worth their padding.
inline constexpr int32_t kLargeTileRows = 65;

struct MatmulPlan {
  MatmulKernel kernel = MatmulKernel::kStream8;
  LaunchShape shape;
  int32_t warp_tiles = 0;   // of kWide: tiles of outputs of a warp
  int32_t block_tiles = 0;  // of kFlow: of a block
};

// In which order products want their inputs, if these need no padding. `format`
// is that of most weights: with four bits kWide takes less time than kFlow for
// few rows, as it converts each weight for fewer of them (docs/gpu.md).
constexpr InputOrder OrderOfInputs(const DeviceKernels& kernels,
                                   WeightFormat format, int32_t rows) {
  const int32_t least =
      HasSliceGrids(format) ? kWideFewRows + 1 : kFlowLeastRows;
  const bool staged =
      rows >= kLargeTileRows ? kernels.group : kernels.flow && rows >= least;
  return staged ? InputOrder::kStaged : InputOrder::kNatural;
}

// REQUIRES: args.rows > 0, a matrix that is not empty; for kSwiglu an even
// number of tiles. Staged inputs are for kGroup and kFlow, whose use the caller
// has decided on.
MatmulPlan PlanMatmul(const MatmulArgs& args, MatmulOutput output,
                      const DeviceKernels& kernels);
// The same for a kernel of the caller's choice; for tests, that compare them.
// `rows` in what the kernel takes.
MatmulPlan PlanMatmul(const MatmulArgs& args, MatmulOutput output,
                      MatmulKernel kernel);

// For the plan of the same arguments.
void RunMatmul(const MatmulPlan& plan, const MatmulArgs& args,
               MatmulOutput output, StreamHandle* stream);

// Plans and runs.
void RunMatmul(const MatmulArgs& args, MatmulOutput output,
               const DeviceKernels& kernels, StreamHandle* stream);

}  // namespace baton::engine::cuda
