#include "engine/cuda/matmul_kernels.h"
#include "engine/cuda/matmul_launch.cuh"

namespace baton::engine::cuda {

void RunMatmulFp8(const MatmulPlan& plan, const MatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream) {
  LaunchMatmul<WeightFormat::kFp8>(plan, args, output, stream);
}

void RunMatmulFp8(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream) {
  LaunchExperts<WeightFormat::kFp8>(plan, args, output, stream);
}

}  // namespace baton::engine::cuda
