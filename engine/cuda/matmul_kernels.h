// The kernels of matmul.h, compiled format by format: each a file of its own.
// For RunMatmul and RunExpertMatmul.
#pragma once

#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul.h"

namespace baton::engine::cuda {

// REQUIRES: args.w.format is the one of the name.
void RunMatmulBf16(const MatmulPlan& plan, const MatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);
void RunMatmulFp8(const MatmulPlan& plan, const MatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream);
void RunMatmulInt8(const MatmulPlan& plan, const MatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);
void RunMatmulInt4(const MatmulPlan& plan, const MatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);

// The same of args.first.w.format.
void RunMatmulBf16(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);
void RunMatmulFp8(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream);
void RunMatmulInt8(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);
void RunMatmulInt4(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream);

}  // namespace baton::engine::cuda
