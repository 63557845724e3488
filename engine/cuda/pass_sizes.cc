#include "engine/cuda/pass_sizes.h"

#include <algorithm>

#include "engine/cuda/expert_matmul.h"
#include "engine/cuda/latent_attention.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {
namespace {

// Most rows whose logits are held at a time, and the unit of their number.
constexpr int32_t kMaxLogitRows = 256;
constexpr int32_t kLogitRowUnit = 16;

}  // namespace

PassSizes::PassSizes(const ModelConfig& config, const Shard& shard,
                     const KvLayout& layout,
                     const ForwardPassOptions& options) {
  heads = shard.Heads(config);
  kv_heads = shard.KvHeads(config);
  hidden = config.hidden_size;
  hidden_part = shard.Hidden(config);
  padded_hidden = PaddedInputs(hidden);
  const LatentConfig& latent = config.latent;
  q_size = static_cast<int32_t>(config.AttentionSize());
  q_part = q_size / shard.ranks;
  padded_q = PaddedInputs(q_size);
  qkv_part = config.IsLatent()
                 ? latent.query_rank + latent.rank + latent.rope_dim
                 : q_part + 2 * kv_heads * config.head_dim;
  stored_q = heads * layout.stored_head_dim();
  intermediate_part = shard.Intermediate(config);
  padded_intermediate = PaddedInputs(config.intermediate_size);
  experts_per_token = config.experts.passed();
  expert_part = shard.ExpertIntermediate(config);
  padded_expert = PaddedInputs(config.experts.intermediate_size);
  experts_staged = options.kernels && options.kernels->group &&
                   hidden == padded_hidden &&
                   config.experts.intermediate_size == padded_expert;
  if (config.experts.count > 0) {
    places = MostPlaces(options.max_rows, experts_per_token,
                        config.experts.all(), experts_staged);
  }
  if (options.lora_rank > 0 && config.intermediate_size > 0) {
    stored_rows = std::min(options.max_rows, options.stored_rows);
    stored_gate_up = int64_t{2 * kTileOutputs} * OutputTiles(intermediate_part);
  }
  vocabulary_part = shard.Vocabulary(config);
  whole_slices = hidden == padded_hidden && q_size == padded_q &&
                 config.intermediate_size == padded_intermediate &&
                 latent.query_rank == PaddedInputs(latent.query_rank);
  logit_stride = (int64_t{config.vocab_size} + 3) / 4 * 4;
  // Logits and their edited copies.
  const int64_t rows = options.logit_bytes / (2 * logit_stride * 4) /
                       kLogitRowUnit * kLogitRowUnit;
  logit_rows = static_cast<int32_t>(
      std::clamp<int64_t>(rows, kLogitRowUnit, kMaxLogitRows));
  span_elements = config.IsLatent() ? latent.rank : layout.stored_head_dim();
  span_blocks = config.IsLatent() ? LatentBlocks(heads, 1) : kv_heads;
  // Many heads with latent attention have large sums: steps of few tokens
  // should still find room, as only those have graphs.
  span_bytes = options.span_bytes * (config.IsLatent() ? span_blocks : 1);
  // Of a span of a token: its sums, its state, its part of the counters.
  span_pieces =
      span_bytes / 4 / (int64_t{heads} * (span_elements + 2) + span_blocks);
  if (shard.ranks > 1) {
    const int64_t per_row =
        std::max({4 * int64_t{hidden_part}, 2 * int64_t{q_part},
                  2 * int64_t{intermediate_part}});
    sent_bytes = std::max({options.max_rows * per_row,
                           logit_rows * 4 * int64_t{vocabulary_part},
                           places * 2 * int64_t{expert_part}});
  }
}

}  // namespace baton::engine::cuda
