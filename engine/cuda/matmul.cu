// Launches the kernels of matmul.h.
#include "engine/cuda/matmul.h"

#include "device_target.h"
#include "engine/cuda/matmul_stream.cuh"
#include "engine/cuda/matmul_tiled.cuh"

namespace baton::engine::cuda {
namespace {

template <MatmulOutput kOutput>
void RunAs(const MatmulPlan& plan, const MatmulArgs& args,
           StreamHandle* stream) {
  constexpr int kTiles = kOutput == MatmulOutput::kSwiglu ? 2 : 1;
  switch (plan.kernel) {
    case MatmulKernel::kStream8:
      Launch(StreamMatmul<kTiles, 1, kOutput>, "matmul (8 rows)", plan.shape,
             stream, args);
      return;
    case MatmulKernel::kStream16:
      Launch(StreamMatmul<kTiles, 2, kOutput>, "matmul (16 rows)", plan.shape,
             stream, args);
      return;
    case MatmulKernel::kTile64:
      Launch(TiledMatmul<64, 64, 2, 2, kOutput>, "matmul (tiles of 64)",
             plan.shape, stream, args);
      return;
    case MatmulKernel::kTile128:
      Launch(TiledMatmul<128, 128, 2, 4, kOutput>, "matmul (tiles of 128)",
             plan.shape, stream, args);
      return;
  }
}

}  // namespace

void RunMatmul(const MatmulPlan& plan, const MatmulArgs& args,
               MatmulOutput output, StreamHandle* stream) {
  switch (output) {
    case MatmulOutput::kStore:
      return RunAs<MatmulOutput::kStore>(plan, args, stream);
    case MatmulOutput::kAdd:
      return RunAs<MatmulOutput::kAdd>(plan, args, stream);
    case MatmulOutput::kSwiglu:
      return RunAs<MatmulOutput::kSwiglu>(plan, args, stream);
  }
}

void RunMatmul(const MatmulArgs& args, MatmulOutput output,
               StreamHandle* stream) {
  RunMatmul(PlanMatmul(args, output), args, output, stream);
}

}  // namespace baton::engine::cuda
