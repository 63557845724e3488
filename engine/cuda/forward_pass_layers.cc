// The kernels of a pass, in order.
#include <algorithm>
#include <utility>

#include "common/log.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/row_kernels.h"

namespace baton::engine::cuda {
namespace {

// Activations that are multiplied.
struct Inputs {
  const uint16_t* x = nullptr;
  int64_t stride = 0;
  InputOrder order = InputOrder::kNatural;
};

void Multiply(const DeviceMatrix& w, const Inputs& inputs, int32_t rows,
              MatmulOutput output, void* out, int64_t out_stride,
              const DeviceKernels& kernels, Stream& stream,
              InputOrder gated_order = InputOrder::kNatural,
              bool gelu = false) {
  MatmulArgs args;
  args.w = w;
  args.x = inputs.x;
  args.x_stride = inputs.stride;
  args.x_order = inputs.order;
  args.rows = rows;
  if (output == MatmulOutput::kSwiglu) {
    args.gated = static_cast<uint16_t*>(out);
    args.gated_order = gated_order;
    args.gelu = gelu;
  } else {
    args.out = static_cast<float*>(out);
  }
  args.out_stride = out_stride;
  RunMatmul(args, output, kernels, stream.handle());
}

// Of the products whose inputs are ordered so; those of experts are apart.
WeightFormat FormatOfMost(const DeviceLayer& layer) {
  if (layer.expert_router.output_tiles == 0) return layer.gate_up.format;
  return layer.qkv.output_tiles > 0 ? layer.qkv.format
                                    : layer.latent.down.format;
}

}  // namespace

template <typename T>
ForwardPass::PartOf<T> ForwardPass::Part(const DeviceBuffer& whole,
                                         int64_t stride, int32_t part) {
  if (place_.group == nullptr) return {whole.as<T>(), stride};
  return {sent_.as<T>(), part};
}

InputOrder ForwardPass::OrderOf(int32_t rows) const {
  if (!sizes_.whole_slices) return InputOrder::kNatural;
  return OrderOfInputs(kernels(), FormatOfMost(weights_.layers.at(0)), rows);
}

InputOrder ForwardPass::LogitOrder(int32_t rows) const {
  return rows <= std::min(sizes_.logit_rows, kFlowRows) ? OrderOf(rows)
                                                        : InputOrder::kNatural;
}

InputOrder ForwardPass::PartOrderOf(int32_t rows) const {
  return place_.group == nullptr ? OrderOf(rows) : InputOrder::kNatural;
}

void ForwardPass::Gather(int64_t bytes) {
  CHECK_LE(bytes, sizes_.sent_bytes);
  place_.group->AllGather(place_.shard.rank, sent_.data(), gathered_.data(),
                          bytes, stream_);
}

template <typename T>
void ForwardPass::Complete(const DeviceBuffer& whole, int64_t stride,
                           int32_t part, int32_t size, int32_t rows,
                           InputOrder order) {
  if (place_.group == nullptr) return;
  constexpr int32_t kElementBytes = sizeof(T);
  Gather(int64_t{rows} * part * kElementBytes);
  JoinArgs join;
  join.from = gathered_.data();
  join.rows = rows;
  join.part_size = part;
  join.size = size;
  join.element_bytes = kElementBytes;
  join.to = whole.data();
  join.to_stride = stride;
  join.to_order = order;
  RunJoin(join, stream_.handle());
}

void ForwardPass::AddProduct(const DeviceMatrix& w, const DeviceBuffer& x,
                             int64_t x_stride, float* residual, int32_t rows,
                             const float* norm) {
  const Inputs inputs = {x.as<uint16_t>(), x_stride, OrderOf(rows)};
  if (place_.group == nullptr) {
    Multiply(w, inputs, rows, MatmulOutput::kAdd, residual, sizes_.hidden,
             kernels(), stream_);
    return;
  }
  CHECK(to_be_added_.values == nullptr);
  Multiply(w, inputs, rows, MatmulOutput::kStore, sent_.data(),
           sizes_.hidden_part, kernels(), stream_);
  GatherAdded(rows, norm);
}

void ForwardPass::GatherAdded(int32_t rows, const float* norm) {
  CHECK(to_be_added_.values == nullptr);
  Gather(int64_t{rows} * sizes_.hidden_part * int64_t{sizeof(float)});
  LeaveAdded(gathered_, sizes_.hidden_part, norm);
}

void ForwardPass::LeaveAdded(const DeviceBuffer& values, int32_t part_size,
                             const float* norm) {
  CHECK(to_be_added_.values == nullptr);
  to_be_added_ = {values.as<float>(), part_size, norm};
}

void ForwardPass::Normalize(float* residual, const float* weight, int32_t rows,
                            InputOrder order) {
  NormArgs args;
  args.residual = residual;
  args.rows = rows;
  args.hidden = sizes_.hidden;
  args.added = to_be_added_.values;
  args.part_size = to_be_added_.part_size;
  args.added_weight = to_be_added_.norm;
  to_be_added_ = {};
  args.weight = weight;
  args.eps = static_cast<float>(config_.rms_norm_eps);
  args.out = normed_.as<uint16_t>();
  args.out_stride = sizes_.padded_hidden;
  args.out_order = order;
  RunNorm(args, stream_.handle());
}

void ForwardPass::RunLayers(const PassArrays& arrays, bool events) {
  const PassSizes& sizes = sizes_;
  EmbedArgs embed;
  embed.tokens = arrays.tokens;
  embed.rows = arrays.rows;
  embed.table = weights_.embedding;
  embed.head = weights_.tied_embedding;
  embed.hidden = sizes.hidden;
  embed.scale = static_cast<float>(config_.embedding_scale);
  embed.residual = residual_.as<float>();
  RunEmbed(embed, stream_.handle());

  CHECK(!(events && arrays.heads_in_attention));
  if (latent_) latent_->Begin();
  FinishHeadsArgs heads;
  heads.qkv = qkv_.as<float>();
  heads.places = arrays.places;
  heads.rows = arrays.rows;
  heads.num_heads = sizes.heads;
  heads.num_kv_heads = sizes.kv_heads;
  heads.head_dim = config_.head_dim;
  heads.turning_pairs = config_.RotaryDim() / 2;
  heads.stored_head_dim = layout_.stored_head_dim();
  heads.eps = static_cast<float>(config_.rms_norm_eps);
  heads.queries = queries_.as<uint16_t>();
  heads.page_bytes = layout_.page_bytes();
  heads.head_bytes = layout_.head_bytes();
  heads.values_offset = layout_.ValuesOffset();
  heads.scales_offset = layout_.KeyScalesOffset();
  heads.block_size = layout_.block_size;
  heads.kv_dtype = layout_.dtype;
  heads.block_tables = arrays.block_tables;

  float* residual = residual_.as<float>();
  int32_t rows = arrays.rows;
  bool no_experts_yet = true;
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DeviceLayer& layer = weights_.layers[i];
    Normalize(residual, layer.input_norm, rows, OrderOf(rows));
    MakeHeads(arrays, i, heads);
    if (events) stream_.Record(*layer_events_[i]);

    const bool last = i + 1 == config_.num_layers;
    if (last && arrays.kept_rows != nullptr) {
      // From here on, only rows that have logits.
      rows = arrays.num_logit_rows;
      if (rows == 0) return;
      GatherArgs gather;
      gather.from = residual;
      gather.rows = arrays.kept_rows;
      gather.count = rows;
      gather.hidden = sizes.hidden;
      gather.to = kept_.as<float>();
      RunGather(gather, stream_.handle());
      residual = kept_.as<float>();
    }
    const LoraRows& adapted = last ? arrays.adapted_last : arrays.adapted;
    const DeviceTiles& tiles =
        last ? arrays.last
             : (config_.LayerSlides(i) ? arrays.sliding : arrays.full);
    AttendRows(arrays, heads, tiles, i, rows);
    AddAdaptedProduct(adapted, i, LoraInput::kO, layer.o, attended_,
                      sizes.padded_q, residual, rows, layer.attention_out_norm);
    if (config_.LayerHasExperts(i)) {
      Normalize(residual, layer.post_attention_norm, rows,
                InputOrder::kNatural);
      // Rows that were kept, as they have logits, are all there.
      MixExperts(layer,
                 residual == residual_.as<float>() ? arrays.places : nullptr,
                 residual, rows, std::exchange(no_experts_yet, false));
      continue;
    }
    Normalize(residual, layer.post_attention_norm, rows, OrderOf(rows));
    const PartOf<uint16_t> gated = Part<uint16_t>(
        gated_, sizes.padded_intermediate, sizes.intermediate_part);
    if (adapted.num_tiles > 0) {
      GateAdapted(adapted, i, rows, gated);
    } else {
      Multiply(layer.gate_up,
               {normed_.as<uint16_t>(), sizes.padded_hidden, OrderOf(rows)},
               rows, MatmulOutput::kSwiglu, gated.data, gated.stride, kernels(),
               stream_, PartOrderOf(rows),
               config_.activation == Activation::kGeluTanh);
    }
    Complete<uint16_t>(gated_, sizes.padded_intermediate,
                       sizes.intermediate_part, config_.intermediate_size, rows,
                       OrderOf(rows));
    AddAdaptedProduct(adapted, i, LoraInput::kDown, layer.down, gated_,
                      sizes.padded_intermediate, residual, rows,
                      layer.feed_forward_out_norm);
  }
  CHECK_EQ(rows, arrays.num_logit_rows);
  Normalize(residual, weights_.final_norm, rows, LogitOrder(rows));
}

void ForwardPass::MakeHeads(const PassArrays& arrays, int32_t layer,
                            FinishHeadsArgs& heads) {
  const DeviceLayer& weights = weights_.layers[layer];
  const int32_t rows = arrays.rows;
  heads.rope = RopeOf(layer);
  heads.pages = kv_memory_ + layout_.PageOffset(layer, 0);
  if (latent_) {
    LatentPass::Layer latent;
    latent.places = arrays.places;
    latent.block_tables = arrays.block_tables;
    latent.pages = heads.pages;
    latent.rope = heads.rope;
    latent.normed = normed_.as<uint16_t>();
    latent.normed_stride = sizes_.padded_hidden;
    latent.order = OrderOf(rows);
    latent.made = qkv_.as<float>();
    latent.queries = queries_.as<uint16_t>();
    latent_->Project(weights.latent, latent, rows, kernels(), stream_);
    return;
  }
  NarrowLora(arrays.adapted, layer, LoraInput::kQkv, normed_,
             sizes_.padded_hidden, OrderOf(rows));
  Multiply(weights.qkv,
           {normed_.as<uint16_t>(), sizes_.padded_hidden, OrderOf(rows)}, rows,
           MatmulOutput::kStore, qkv_.data(), sizes_.qkv_part, kernels(),
           stream_);
  AddLora(arrays.adapted, layer, LoraInput::kQkv, qkv_.as<float>(),
          sizes_.qkv_part);
  heads.q_norm = weights.q_norm;
  heads.k_norm = weights.k_norm;
  if (!arrays.heads_in_attention) RunFinishHeads(heads, stream_.handle());
}

void ForwardPass::AttendRows(const PassArrays& arrays,
                             const FinishHeadsArgs& heads,
                             const DeviceTiles& tiles, int32_t layer,
                             int32_t rows) {
  const PartOf<uint16_t> attended =
      Part<uint16_t>(attended_, sizes_.padded_q, sizes_.q_part);
  if (latent_) {
    Attend(arrays, heads, tiles, layer, rows, latent_->out(),
           latent_->out_stride());
    latent_->Finish(weights_.layers[layer].latent, rows, attended.data,
                    attended.stride, PartOrderOf(rows), stream_);
  } else {
    Attend(arrays, heads, tiles, layer, rows, attended.data, attended.stride);
  }
  Complete<uint16_t>(attended_, sizes_.padded_q, sizes_.q_part, sizes_.q_size,
                     rows, OrderOf(rows));
}

void ForwardPass::Attend(const PassArrays& arrays, const FinishHeadsArgs& heads,
                         const DeviceTiles& tiles, int32_t layer, int32_t rows,
                         uint16_t* out, int64_t out_stride) {
  AttentionArgs args;
  args.queries = queries_.as<uint16_t>();
  args.pages = kv_memory_ + layout_.PageOffset(layer, 0);
  args.page_bytes = layout_.page_bytes();
  args.head_bytes = layout_.head_bytes();
  args.values_offset = layout_.ValuesOffset();
  args.scales_offset = layout_.KeyScalesOffset();
  args.block_size = layout_.block_size;
  args.kv_dtype = layout_.dtype;
  args.block_tables = arrays.block_tables;
  args.num_heads = sizes_.heads;
  args.num_kv_heads = sizes_.kv_heads;
  args.head_dim = config_.head_dim;
  args.stored_head_dim = layout_.stored_head_dim();
  args.window =
      config_.LayerSlides(layer) ? config_.sliding_window.value_or(0) : 0;
  args.score_factor = ScoreFactor(config_.ScoreScale());
  args.sinks = weights_.layers[layer].sinks;
  args.out = out;
  args.out_stride = out_stride;
  args.out_order = PartOrderOf(rows);
  if (latent_) {
    args.value_dim = config_.latent.rank;
    args.out_step = latent_->out_step();
    args.out_order = InputOrder::kNatural;
  }
  // Else keys and values would not be written.
  CHECK(!arrays.heads_in_attention ||
        (tiles.num_whole == 0 && tiles.num_single == rows &&
         rows == arrays.rows));
  if (tiles.num_whole > 0) {
    args.tiles = tiles.whole;
    args.num_tiles = tiles.num_whole;
    args.tile_queries = tiles.tile_queries;
    RunAttention(args, stream_.handle());
    args.tile_queries = kTileQueries;
  }
  if (tiles.num_single > 0) {
    args.tiles = tiles.single;
    args.num_tiles = tiles.num_single;
    args.max_spans = tiles.max_spans;
    args.span_rows = tiles.span_rows;
    args.span_sums = span_sums_.as<float>();
    args.span_states = span_states_.as<float>();
    args.span_counts = span_counts_.as<uint32_t>();
    if (arrays.heads_in_attention) args.heads = heads;
    CHECK(args.heads.qkv == nullptr || args.max_spans > 0);
    RunAttention(args, stream_.handle());
  }
}

void ForwardPass::RunLogits(const PassArrays& arrays, int32_t first,
                            int32_t count) {
  CHECK_LE(count, sizes_.logit_rows);
  const int64_t stride = sizes_.padded_hidden;
  const InputOrder order = LogitOrder(arrays.num_logit_rows);
  CHECK(first == 0 || order == InputOrder::kNatural);
  const PartOf<float> logits =
      Part<float>(logits_, sizes_.logit_stride, sizes_.vocabulary_part);
  Multiply(weights_.lm_head,
           {normed_.as<uint16_t>() + first * stride, stride, order}, count,
           MatmulOutput::kStore, logits.data, logits.stride, kernels(),
           stream_);
  Complete<float>(logits_, sizes_.logit_stride, sizes_.vocabulary_part,
                  config_.vocab_size, count);
  // All ranks draw, and all the same: the next step may begin with these tokens
  // before any host knows them.
  SampleArgs sample;
  sample.logits = logits_.as<float>();
  sample.edited = edited_.as<float>();
  sample.stride = sizes_.logit_stride;
  sample.vocab_size = config_.vocab_size;
  sample.rows = count;
  sample.how = arrays.how + first;
  sample.edits = arrays.edits;
  sample.masks = arrays.masks;
  sample.outcomes = outcomes();
  sample.tops = tops_.as<TopLogit>();
  RunSample(sample, stream_.handle());
  if (takes_outcomes() && arrays.targets != nullptr) {
    PickArgs pick;
    pick.logits = logits_.as<float>();
    pick.stride = sizes_.logit_stride;
    pick.tokens = arrays.targets + first;
    pick.rows = count;
    pick.values = picked_.as<float>();
    RunPick(pick, stream_.handle());
    stream_.CopyToHost(host_picked_.data(), picked_.data(),
                       count * int64_t{sizeof(float)});
  }
}

// For layers with experts (forward_pass_experts.cc), and for adapters
// (forward_pass_lora.cc).
template ForwardPass::PartOf<uint16_t> ForwardPass::Part<uint16_t>(
    const DeviceBuffer&, int64_t, int32_t);
template void ForwardPass::Complete<float>(const DeviceBuffer&, int64_t,
                                           int32_t, int32_t, int32_t,
                                           InputOrder);
template ForwardPass::PartOf<float> ForwardPass::Part<float>(
    const DeviceBuffer&, int64_t, int32_t);
template void ForwardPass::Complete<uint16_t>(const DeviceBuffer&, int64_t,
                                              int32_t, int32_t, int32_t,
                                              InputOrder);

}  // namespace baton::engine::cuda
