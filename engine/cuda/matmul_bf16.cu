#include "engine/cuda/matmul_kernels.h"
#include "engine/cuda/matmul_launch.cuh"

namespace baton::engine::cuda {

void RunMatmulBf16(const MatmulPlan& plan, const MatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream) {
  LaunchMatmul<WeightFormat::kBf16>(plan, args, output, stream);
}

void RunMatmulBf16(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream) {
  LaunchExperts<WeightFormat::kBf16>(plan, args, output, stream);
}

}  // namespace baton::engine::cuda
