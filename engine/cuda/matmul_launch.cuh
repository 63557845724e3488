// Launches the kernels of matmul.h for one format of weights.
#pragma once

#include "common/log.h"
#include "device_target.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/matmul_flow.cuh"
#include "engine/cuda/matmul_group.cuh"
#include "engine/cuda/matmul_stream.cuh"
#include "engine/cuda/matmul_tiled.cuh"
#include "engine/cuda/matmul_wide.cuh"

namespace baton::engine::cuda {

template <WeightFormat kFormat, MatmulOutput kOutput>
void LaunchMatmulFor(const MatmulPlan& plan, const MatmulArgs& args,
                     StreamHandle* stream) {
  constexpr int kTiles = kOutput == MatmulOutput::kSwiglu ? 2 : 1;
  switch (plan.kernel) {
    case MatmulKernel::kStream8:
      Launch(StreamMatmul<kFormat, kTiles, 1, kOutput>, "matmul (8 rows)",
             plan.shape, stream, args);
      return;
    case MatmulKernel::kStream16:
      Launch(StreamMatmul<kFormat, kTiles, 2, kOutput>, "matmul (16 rows)",
             plan.shape, stream, args);
      return;
    case MatmulKernel::kTile64:
      Launch(TiledMatmul<kFormat, 64, 64, 2, 2, kOutput>,
             "matmul (tiles of 64)", plan.shape, stream, args);
      return;
    case MatmulKernel::kTile128:
      Launch(TiledMatmul<kFormat, 128, 128, 2, 4, kOutput>,
             "matmul (tiles of 128)", plan.shape, stream, args);
      return;
    case MatmulKernel::kWide: {
      const auto run = [&](auto kernel, const char* name) {
        Launch(kernel, name, plan.shape, stream, args,
               static_cast<int32_t>(plan.shape.x));
      };
      constexpr int kFew = kWideFewRows / 8;
      constexpr int kMany = kWideRows / 8;
      const bool few = args.rows <= kWideFewRows;
      if constexpr (kOutput != MatmulOutput::kSwiglu) {
        if (plan.warp_tiles == 1) {
          return few ? run(WideMatmul<kFormat, 1, kFew, kOutput>,
                           "matmul (wide, halves, 32 rows)")
                     : run(WideMatmul<kFormat, 1, kMany, kOutput>,
                           "matmul (wide, halves, 64 rows)");
        }
      }
      return few ? run(WideMatmul<kFormat, kWideWarpTiles, kFew, kOutput>,
                       "matmul (wide, 32 rows)")
                 : run(WideMatmul<kFormat, kWideWarpTiles, kMany, kOutput>,
                       "matmul (wide, 64 rows)");
    }
    case MatmulKernel::kGroup:
      if constexpr (!HasSliceGrids(kFormat)) {
        if (GroupRows(kFormat, args.rows) == kGroupRows) {
          Launch(GroupMatmul<kFormat, kGroupRows, kOutput>,
                 "matmul (groups of warps)", plan.shape, stream, args);
          return;
        }
      }
      Launch(GroupMatmul<kFormat, kGroupFewRows, kOutput>,
             "matmul (groups of warps)", plan.shape, stream, args);
      return;
    case MatmulKernel::kFlow: {
      const auto run = [&](auto kernel, const char* name) {
        Launch(kernel, name, plan.shape, stream, args, plan.block_tiles,
               static_cast<int32_t>(plan.shape.x));
      };
      const bool few = plan.shape.threads == 32 * kFlowFewWarps;
      if constexpr (kOutput != MatmulOutput::kSwiglu) {
        if (plan.shape.x > 1) {
          return run(FlowMatmul<kFormat, kFlowFewWarps, kOutput, true>,
                     "matmul (flow)");
        }
      }
      return few ? run(FlowMatmul<kFormat, kFlowFewWarps, kOutput, false>,
                       "matmul (flow)")
                 : run(FlowMatmul<kFormat, kFlowWarps, kOutput, false>,
                       "matmul (flow)");
    }
  }
}

template <WeightFormat kFormat>
void LaunchMatmul(const MatmulPlan& plan, const MatmulArgs& args,
                  MatmulOutput output, StreamHandle* stream) {
  switch (output) {
    case MatmulOutput::kStore:
      return LaunchMatmulFor<kFormat, MatmulOutput::kStore>(plan, args, stream);
    case MatmulOutput::kAdd:
      return LaunchMatmulFor<kFormat, MatmulOutput::kAdd>(plan, args, stream);
    case MatmulOutput::kSwiglu:
      return LaunchMatmulFor<kFormat, MatmulOutput::kSwiglu>(plan, args,
                                                             stream);
  }
}

template <WeightFormat kFormat, MatmulOutput kOutput>
void LaunchExpertsFor(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                      StreamHandle* stream) {
  constexpr int kTiles = kOutput == MatmulOutput::kSwiglu ? 2 : 1;
  switch (plan.kernel) {
    case MatmulKernel::kStream8:
      Launch(StreamExperts<kFormat, kTiles, 1, kOutput>, "experts (8 rows)",
             plan.shape, stream, args);
      return;
    case MatmulKernel::kStream16:
      Launch(StreamExperts<kFormat, kTiles, 2, kOutput>, "experts (16 rows)",
             plan.shape, stream, args);
      return;
    case MatmulKernel::kTile64:
      Launch(TiledExperts<kFormat, 64, 64, 2, 2, kOutput>,
             "experts (tiles of 64)", plan.shape, stream, args);
      return;
    case MatmulKernel::kTile128:
      Launch(TiledExperts<kFormat, 128, 128, 2, 4, kOutput>,
             "experts (tiles of 128)", plan.shape, stream, args);
      return;
    case MatmulKernel::kGroup:
      if constexpr (!HasSliceGrids(kFormat)) {
        if (args.tile_rows == kGroupRows) {
          Launch(GroupMatmul<kFormat, kGroupRows, kOutput, GroupOfExpert>,
                 "experts (groups of warps)", plan.shape, stream, args);
          return;
        }
      }
      Launch(GroupMatmul<kFormat, kGroupFewRows, kOutput, GroupOfExpert>,
             "experts (groups of warps)", plan.shape, stream, args);
      return;
    case MatmulKernel::kWide:
    case MatmulKernel::kFlow:
      LOG(FATAL) << "no kernel for experts";
  }
}

// What experts say is summed apart: nothing is added here.
template <WeightFormat kFormat>
void LaunchExperts(const MatmulPlan& plan, const ExpertMatmulArgs& args,
                   MatmulOutput output, StreamHandle* stream) {
  if (output == MatmulOutput::kSwiglu) {
    LaunchExpertsFor<kFormat, MatmulOutput::kSwiglu>(plan, args, stream);
  } else {
    LaunchExpertsFor<kFormat, MatmulOutput::kStore>(plan, args, stream);
  }
}

}  // namespace baton::engine::cuda
