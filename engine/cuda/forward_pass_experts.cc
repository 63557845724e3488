// Layers with experts: the kernels of one, in order, and what is told of them.
#include <cstring>

#include "common/log.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/forward_pass.h"

namespace baton::engine::cuda {

void ForwardPass::MixExperts(const DeviceLayer& layer, const RowPlace* places,
                             float* residual, int32_t rows, bool first) {
  const ExpertsConfig& experts = config_.experts;
  MatmulArgs router;
  router.w = layer.expert_router;
  router.x = normed_.as<uint16_t>();
  router.x_stride = sizes_.padded_hidden;
  router.rows = rows;
  router.out = router_logits_.as<float>();
  router.out_stride = experts.count;
  RunMatmul(router, MatmulOutput::kStore, kernels(), stream_.handle());

  const int32_t turns = rows * experts.per_token;
  const ExpertTiling tiling = TilingOf(turns, experts.count);
  RouteArgs route;
  route.logits = router.out;
  route.stride = router.out_stride;
  route.rows = rows;
  route.experts = experts.count;
  route.per_token = experts.per_token;
  route.normalized = experts.normalized;
  route.places = places;
  route.choices = choices_.as<ExpertChoice>();
  route.place_rows = place_rows_.as<int32_t>();
  route.tiles = row_tiles_.as<RowTile>();
  route.tile_rows = tiling.tile_rows;
  route.num_tiles = tiling.num_tiles;
  route.reads = outcomes_.as<uint32_t>();
  route.first = first;
  RunRoute(route, stream_.handle());

  const PartOf<uint16_t> gated =
      Part<uint16_t>(expert_gated_, sizes_.padded_expert, sizes_.expert_part);
  MultiplyExperts(layer.gate_up, tiling, normed_, sizes_.padded_hidden,
                  route.place_rows, turns, MatmulOutput::kSwiglu, gated.data,
                  gated.stride);
  Complete<uint16_t>(expert_gated_, sizes_.padded_expert, sizes_.expert_part,
                     experts.intermediate_size, turns);
  MultiplyExperts(layer.down, tiling, expert_gated_, sizes_.padded_expert,
                  /*x_rows=*/nullptr, turns, MatmulOutput::kStore,
                  expert_out_.data(), sizes_.hidden_part);

  MixArgs mix;
  mix.choices = route.choices;
  mix.rows = rows;
  mix.per_token = experts.per_token;
  mix.said = expert_out_.as<float>();
  mix.size = sizes_.hidden_part;
  mix.add = place_.group == nullptr;
  mix.out = mix.add ? residual : sent_.as<float>();
  RunMix(mix, stream_.handle());
  if (!mix.add) GatherAdded(rows);
}

void ForwardPass::MultiplyExperts(const DeviceMatrix& first,
                                  const ExpertTiling& tiling,
                                  const DeviceBuffer& x, int64_t x_stride,
                                  const int32_t* x_rows, int32_t places,
                                  MatmulOutput output, void* out,
                                  int64_t out_stride) {
  ExpertMatmulArgs args;
  args.first.w = first;
  args.first.x = x.as<uint16_t>();
  args.first.x_stride = x_stride;
  args.first.rows = places;
  if (output == MatmulOutput::kSwiglu) {
    args.first.gated = static_cast<uint16_t*>(out);
  } else {
    args.first.out = static_cast<float*>(out);
  }
  args.first.out_stride = out_stride;
  args.tiles = row_tiles_.as<RowTile>();
  args.num_tiles = tiling.num_tiles;
  args.x_rows = x_rows;
  RunExpertMatmul(tiling, args, output, stream_.handle());
}

void ForwardPass::NoteExperts(int64_t rows, int64_t logit_rows, int slot,
                              scheduling::StepResult& result) const {
  if (!takes_outcomes()) return;
  int64_t through = 0;
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const bool last = i + 1 == config_.num_layers;
    if (config_.LayerHasExperts(i)) through += last ? logit_rows : rows;
  }
  // Else nothing was counted.
  if (through == 0) return;
  uint32_t reads = 0;
  std::memcpy(&reads, host_outcomes_[slot].data(), sizeof(reads));
  result.expert_reads += reads;
  result.expert_rows += through * config_.experts.per_token;
}

}  // namespace baton::engine::cuda
