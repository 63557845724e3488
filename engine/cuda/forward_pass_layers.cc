// The kernels of a pass, in order.
#include "common/log.h"
#include "engine/cuda/forward_pass.h"
#include "engine/cuda/row_kernels.h"

namespace baton::engine::cuda {
namespace {

void Normalize(const float* residual, const float* weight, float eps,
               int32_t rows, int32_t hidden, const DeviceBuffer& out,
               Stream& stream) {
  NormArgs args;
  args.residual = residual;
  args.rows = rows;
  args.hidden = hidden;
  args.weight = weight;
  args.eps = eps;
  args.out = out.as<uint16_t>();
  args.out_stride = PaddedInputs(hidden);
  RunNorm(args, stream.handle());
}

void Multiply(const DeviceMatrix& w, const uint16_t* x, int64_t x_stride,
              int32_t rows, MatmulOutput output, void* out, int64_t out_stride,
              Stream& stream) {
  MatmulArgs args;
  args.w = w;
  args.x = x;
  args.x_stride = x_stride;
  args.rows = rows;
  if (output == MatmulOutput::kSwiglu) {
    args.gated = static_cast<uint16_t*>(out);
  } else {
    args.out = static_cast<float*>(out);
  }
  args.out_stride = out_stride;
  RunMatmul(args, output, stream.handle());
}

}  // namespace

void ForwardPass::RunLayers(const PassArrays& arrays, bool events) {
  const Sizes& sizes = sizes_;
  const auto eps = static_cast<float>(config_.rms_norm_eps);
  EmbedArgs embed;
  embed.tokens = arrays.tokens;
  embed.rows = arrays.rows;
  embed.table = weights_.embedding;
  embed.head = weights_.lm_head;
  embed.hidden = sizes.hidden;
  embed.residual = residual_.as<float>();
  RunEmbed(embed, stream_.handle());

  FinishHeadsArgs heads;
  heads.qkv = qkv_.as<float>();
  heads.places = arrays.places;
  heads.rows = arrays.rows;
  heads.num_heads = config_.num_heads;
  heads.num_kv_heads = config_.num_kv_heads;
  heads.head_dim = config_.head_dim;
  heads.stored_head_dim = layout_.stored_head_dim();
  heads.eps = eps;
  heads.rope = rope_.as<float>();
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
  for (int32_t i = 0; i < config_.num_layers; ++i) {
    const DeviceLayer& layer = weights_.layers[i];
    Normalize(residual, layer.input_norm, eps, rows, sizes.hidden, normed_,
              stream_);
    Multiply(layer.qkv, normed_.as<uint16_t>(), sizes.padded_hidden, rows,
             MatmulOutput::kStore, qkv_.data(), sizes.qkv_size, stream_);
    heads.q_norm = layer.q_norm;
    heads.k_norm = layer.k_norm;
    heads.pages = kv_memory_ + layout_.PageOffset(i, 0);
    RunFinishHeads(heads, stream_.handle());
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
    const DeviceTiles& tiles =
        last ? arrays.last
             : (config_.LayerSlides(i) ? arrays.sliding : arrays.full);
    Attend(arrays, tiles, i);
    Multiply(layer.o, attended_.as<uint16_t>(), sizes.padded_q, rows,
             MatmulOutput::kAdd, residual, sizes.hidden, stream_);
    Normalize(residual, layer.post_attention_norm, eps, rows, sizes.hidden,
              normed_, stream_);
    Multiply(layer.gate_up, normed_.as<uint16_t>(), sizes.padded_hidden, rows,
             MatmulOutput::kSwiglu, gated_.data(), sizes.padded_intermediate,
             stream_);
    Multiply(layer.down, gated_.as<uint16_t>(), sizes.padded_intermediate, rows,
             MatmulOutput::kAdd, residual, sizes.hidden, stream_);
  }
  Normalize(residual, weights_.final_norm, eps, rows, sizes.hidden, normed_,
            stream_);
}

void ForwardPass::Attend(const PassArrays& arrays, const DeviceTiles& tiles,
                         int32_t layer) {
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
  args.num_heads = config_.num_heads;
  args.num_kv_heads = config_.num_kv_heads;
  args.head_dim = config_.head_dim;
  args.stored_head_dim = layout_.stored_head_dim();
  args.window =
      config_.LayerSlides(layer) ? config_.sliding_window.value_or(0) : 0;
  args.score_factor = ScoreFactor(config_.head_dim);
  args.out = attended_.as<uint16_t>();
  args.out_stride = sizes_.padded_q;
  if (tiles.num_whole > 0) {
    args.tiles = tiles.whole;
    args.num_tiles = tiles.num_whole;
    RunAttention(args, stream_.handle());
  }
  if (tiles.num_single > 0) {
    args.tiles = tiles.single;
    args.num_tiles = tiles.num_single;
    args.max_spans = tiles.max_spans;
    args.span_sums = span_sums_.as<float>();
    args.span_states = span_states_.as<float>();
    RunAttention(args, stream_.handle());
  }
}

void ForwardPass::RunLogits(const PassArrays& arrays, int32_t first,
                            int32_t count) {
  CHECK_LE(count, sizes_.logit_rows);
  const int64_t stride = sizes_.padded_hidden;
  Multiply(weights_.lm_head, normed_.as<uint16_t>() + first * stride, stride,
           count, MatmulOutput::kStore, logits_.data(), sizes_.logit_stride,
           stream_);
  SampleArgs sample;
  sample.logits = logits_.as<float>();
  sample.edited = edited_.as<float>();
  sample.stride = sizes_.logit_stride;
  sample.vocab_size = config_.vocab_size;
  sample.rows = count;
  sample.how = arrays.how + first;
  sample.edits = arrays.edits;
  sample.outcomes = outcomes_.as<SampleOutcome>();
  RunSample(sample, stream_.handle());
  if (arrays.targets != nullptr) {
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
  stream_.CopyToHost(host_outcomes_.data(), outcomes_.data(),
                     count * int64_t{sizeof(SampleOutcome)});
}

}  // namespace baton::engine::cuda
