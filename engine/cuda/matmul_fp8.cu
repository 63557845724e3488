#include "engine/cuda/matmul_kernels.h"
#include "engine/cuda/matmul_launch.cuh"

namespace baton::engine::cuda {

void RunMatmulFp8(const MatmulPlan& plan, const MatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream) {
  LaunchMatmul<WeightFormat::kFp8>(plan, args, output, stream);
}

}  // namespace baton::engine::cuda
