// Layers with experts: the kernels of one, in order, and what is told of them.
#include <cstring>

#include "common/log.h"
#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/experts.h"
#include "engine/cuda/forward_pass.h"

namespace baton::engine::cuda {

void ForwardPass::MixExperts(const DeviceLayer& layer,
                             const RowPlace* row_places, float* residual,
                             int32_t rows, bool first) {
  const ExpertsConfig& experts = config_.experts;
  MatmulArgs router;
  router.w = layer.expert_router;
  router.x = normed_.as<uint16_t>();
  router.x_stride = sizes_.padded_hidden;
  router.rows = rows;
  router.out = router_logits_.as<float>();
  router.out_stride = experts.count;
  RunMatmul(router, MatmulOutput::kStore, kernels(), stream_.handle());

  const ExpertTiling tiling =
      TilingOf(rows * experts.passed(), experts.all(), layer.gate_up.format,
               sizes_.experts_staged);
  RouteArgs route;
  route.logits = router.out;
  route.stride = router.out_stride;
  route.rows = rows;
  route.experts = experts.count;
  route.per_token = experts.per_token;
  route.shared = experts.shared;
  route.groups = experts.groups;
  route.chosen_groups = experts.chosen_groups;
  route.sigmoid = experts.score == ExpertsConfig::Score::kSigmoid;
  route.choice_bias = layer.choice_bias;
  route.normalized = experts.normalized;
  route.scale = static_cast<float>(experts.scale);
  route.row_places = row_places;
  route.choices = choices_.as<ExpertChoice>();
  route.place_rows = place_rows_.as<int32_t>();
  route.tiles = row_tiles_.as<RowTile>();
  route.tiling = tiling;
  route.reads = outcomes_.as<uint32_t>();
  route.first = first;
  RunRoute(route, stream_.handle());

  ExpertMatmulArgs product;
  product.tiles = route.tiles;
  product.num_tiles = tiling.num_tiles;
  product.tile_rows = tiling.tile_rows;
  MatmulArgs& of_first = product.first;
  of_first.rows = tiling.places;
  of_first.w = layer.gate_up;
  of_first.x_stride = sizes_.padded_hidden;
  const InputOrder order =
      tiling.staged ? InputOrder::kStaged : InputOrder::kNatural;
  of_first.x_order = order;
  if (tiling.staged) {
    StageRowsArgs stage;
    stage.from = normed_.as<uint16_t>();
    stage.inputs = sizes_.hidden;
    stage.place_rows = route.place_rows;
    stage.tiles = route.tiles;
    stage.tiling = tiling;
    stage.to = expert_in_.as<uint16_t>();
    RunStageRows(stage, stream_.handle());
    of_first.x = stage.to;
  } else {
    of_first.x = normed_.as<uint16_t>();
    product.x_rows = route.place_rows;
  }
  const PartOf<uint16_t> gated =
      Part<uint16_t>(expert_gated_, sizes_.padded_expert, sizes_.expert_part);
  of_first.gated = gated.data;
  of_first.out_stride = gated.stride;
  of_first.swiglu_limit = static_cast<float>(experts.swiglu_limit);
  // Parts are sent as they come.
  if (place_.group == nullptr) of_first.gated_order = order;
  RunExpertMatmul(tiling, product, MatmulOutput::kSwiglu, stream_.handle());
  Complete<uint16_t>(expert_gated_, sizes_.padded_expert, sizes_.expert_part,
                     experts.intermediate_size, tiling.places, order);

  of_first.w = layer.down;
  of_first.x = expert_gated_.as<uint16_t>();
  of_first.x_stride = sizes_.padded_expert;
  product.x_rows = nullptr;
  of_first.gated = nullptr;
  of_first.gated_order = InputOrder::kNatural;
  of_first.out = expert_out_.as<float>();
  of_first.out_stride = sizes_.hidden_part;
  RunExpertMatmul(tiling, product, MatmulOutput::kStore, stream_.handle());

  MixArgs mix;
  mix.choices = route.choices;
  mix.rows = rows;
  mix.per_token = experts.passed();
  mix.said = expert_out_.as<float>();
  mix.size = sizes_.hidden_part;
  mix.add = place_.group == nullptr;
  mix.out = mix.add ? residual : sent_.as<float>();
  RunMix(mix, stream_.handle());
  if (!mix.add) GatherAdded(rows);
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
  result.expert_rows += through * config_.experts.passed();
}

}  // namespace baton::engine::cuda
