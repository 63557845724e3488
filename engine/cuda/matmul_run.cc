#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/matmul_kernels.h"

namespace baton::engine::cuda {

namespace {

template <typename Args>
void RunFor(WeightFormat format, const MatmulPlan& plan, const Args& args,
            MatmulOutput output, StreamHandle* stream) {
  switch (format) {
    case WeightFormat::kBf16:
      return RunMatmulBf16(plan, args, output, stream);
    case WeightFormat::kFp8:
      return RunMatmulFp8(plan, args, output, stream);
    case WeightFormat::kInt8:
      return RunMatmulInt8(plan, args, output, stream);
    case WeightFormat::kInt4:
      return RunMatmulInt4(plan, args, output, stream);
  }
}

}  // namespace

void RunMatmul(const MatmulPlan& plan, const MatmulArgs& args,
               MatmulOutput output, StreamHandle* stream) {
  RunFor(args.w.format, plan, args, output, stream);
}

void RunMatmul(const MatmulArgs& args, MatmulOutput output,
               const DeviceKernels& kernels, StreamHandle* stream) {
  RunMatmul(PlanMatmul(args, output, kernels), args, output, stream);
}

void RunExpertMatmul(const ExpertTiling& tiling, const ExpertMatmulArgs& args,
                     MatmulOutput output, StreamHandle* stream) {
  RunFor(args.first.w.format, PlanExpertMatmul(tiling, args, output), args,
         output, stream);
}

}  // namespace baton::engine::cuda
