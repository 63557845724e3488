#include "engine/cuda/matmul_kernels.h"
#include "engine/cuda/matmul_launch.cuh"

namespace baton::engine::cuda {

void RunMatmulInt4(const MatmulPlan& plan, const MatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream) {
  LaunchMatmul<WeightFormat::kInt4>(plan, args, output, stream);
}

void RunMatmulInt4(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream) {
  LaunchExperts<WeightFormat::kInt4>(plan, args, output, stream);
}

}  // namespace baton::engine::cuda
